"""Hashes a model's configuration, weights, types and release into a few characters, for clients that compare answers.

Sizes, beginnings and ends stand for whole weight files. Called by the composition root, once per model.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from dragoman import __version__
from dragoman.gguf.files import files_that_see, gguf_files

_SAMPLE_BYTES = 1 << 20
_NUM_CHARACTERS = 10
_WEIGHTS = ("*.safetensors", "*.gguf", "openvino_*.xml", "openvino_*.bin")


def model_fingerprint(model_dir: Path, *settings: str) -> str:
    """`fp_` and ten hexadecimal digits; the same for the same files, settings and release on any machine."""
    digest = hashlib.sha256("\0".join((__version__, *settings)).encode())
    for path in sorted([*weight_files(model_dir), model_dir / "config.json"]):
        if path.is_file():
            digest.update(f"\0{path.name}\0{path.stat().st_size}\0".encode())
            digest.update(_sample(path))
    return f"fp_{digest.hexdigest()[:_NUM_CHARACTERS]}"


def weight_files(model_dir: Path) -> list[Path]:
    files = (*gguf_files(model_dir), *files_that_see(model_dir)) if model_dir.is_file() else ()
    return sorted([*files, *(path for pattern in _WEIGHTS for path in model_dir.glob(pattern))])


def _sample(path: Path) -> bytes:
    size = path.stat().st_size
    with path.open("rb") as file:
        begin = file.read(_SAMPLE_BYTES)
        file.seek(max(len(begin), size - _SAMPLE_BYTES))
        return begin + file.read()
