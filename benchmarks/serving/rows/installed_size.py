"""Row 7: how much disk the runtime takes, by package, and the peers' environments.

Does: install this repository without extras into a fresh virtual environment and add up its packages.
Does not: count the interpreter, pip, or the model.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serving import peers
from benchmarks.serving.results import Result, Value
from benchmarks.serving.settings import Settings
from benchmarks.serving.turns import say

ROW = 7
TITLE = "Installed size"

REPOSITORY = Path(__file__).resolve().parents[3]

_NOT_COUNTED = ("pip", "setuptools", "pkg_resources", "wheel", "_distutils_hack", "distutils-precedence.pth")
_NUM_NAMED = 6


@dataclass(frozen=True, slots=True)
class InstalledSize:
    """Megabytes (10^6 bytes) in an environment's site-packages: all, and by top-level package, the largest first."""

    total_mb: float
    packages_mb: dict[str, float]


def measure(environment: Path) -> InstalledSize:
    """The packages of a virtual environment, without what every environment has (pip)."""
    sizes: dict[str, int] = {}
    for directory in environment.glob("lib/python*/site-packages"):
        for entry in directory.iterdir():
            # numpy, numpy.libs and numpy-2.4.6.dist-info belong together
            package = entry.name.partition("-")[0].removesuffix(".libs").lower()
            if entry.name.partition("-")[0] not in _NOT_COUNTED and entry.name not in _NOT_COUNTED:
                sizes[package] = sizes.get(package, 0) + size_bytes(entry)
    largest = sorted(sizes.items(), key=lambda item: -item[1])
    return InstalledSize(round(sum(sizes.values()) / 1e6, 1), {name: round(size / 1e6, 1) for name, size in largest})


def size_bytes(path: Path) -> int:
    """Bytes on disk of a file, or of everything below a directory; links are not followed, hard links count once."""
    if not path.is_dir() or path.is_symlink():
        return path.lstat().st_size
    seen: dict[int, int] = {}
    for directory, _, names in os.walk(path):
        for name in names:
            status = os.lstat(os.path.join(directory, name))
            seen[status.st_ino] = status.st_size
    return sum(seen.values())


def run(settings: Settings) -> Iterator[Result]:
    """Ours, then every installed peer."""
    if not settings.peers_only:
        settings.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=settings.out) as directory:
            say("installing this repository into a fresh environment")
            environment = Path(directory) / "venv"
            install(environment)
            yield _result("dragoman", measure(environment))
    for peer in ("vllm", "genai"):
        if peer not in settings.without and peers.python_of(settings.peers, peer).exists():
            yield _result(peer, measure(settings.peers / peer))
    binary = peers.llamacpp_binary(settings.peers)
    if "llama.cpp" not in settings.without and binary.exists():
        size_mb = round(size_bytes(binary) / 1e6, 1)
        yield Result(ROW, "llama.cpp (llama-server alone)", {"total_mb": size_mb, "largest": ""})


def install(environment: Path) -> None:
    """A virtual environment with the runtime, at the versions of constraints.txt."""
    venv.create(environment, with_pip=True)
    constraints = str(REPOSITORY / "constraints.txt")
    environ = {**os.environ, "PIP_CONSTRAINT": constraints, "PIP_BUILD_CONSTRAINT": constraints}
    command = [str(environment / "bin" / "python"), "-m", "pip", "install", "-qq", "--no-compile", str(REPOSITORY)]
    subprocess.run(command, check=True, env=environ)


def _result(subject: str, size: InstalledSize) -> Result:
    named = list(size.packages_mb.items())[:_NUM_NAMED]
    values: dict[str, Value] = {"total_mb": size.total_mb}
    return Result(ROW, subject, {**values, "largest": ", ".join(f"{name} {mb:.0f}" for name, mb in named)})
