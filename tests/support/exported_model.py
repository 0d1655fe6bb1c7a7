"""Writes the exported graphs of tests/models/exported, whose weights are those of cases of tests/models/families.

Does: unpack an archive, and put its weights together from the case's tensors and from what the archive has besides.
Does not: export (scripts/record_ir_references.py does, and packs archives by `parts_of`).

An archive `<case>[-<form>].tar.xz` holds a directory as optimum-intel writes it, but in place of the files with weights:
    parts.json  for each of these files [offset, size, source] of its pieces; a source is null for the next bytes of
                rest.bin, or says which tensor it is: its name, the type of its numbers, and whether its last two axes
                are exchanged
    rest.bin    the other pieces, one after the other
"""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

from tests.support.family_checkpoint import Array, write_family_checkpoint

EXPORTED = Path(__file__).parents[1] / "models" / "exported"
Source = tuple[str, str, bool]
Part = tuple[int, int, Source | None]

_KINDS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
_LEAST_BYTES = 512  # of a piece that is looked for among the tensors


def exported_names(suffix: str = "") -> list[str]:
    """Every recorded export whose name ends so, sorted."""
    return sorted(path.name.partition(".")[0] for path in EXPORTED.glob(f"*{suffix}.tar.xz"))


def case_of(name: str) -> str:
    """The case of tests/models/families that an export was made of."""
    return name.partition("-")[0]


def write_exported(name: str, directory: Path) -> Path:
    """Write the recorded export `name`; returns `directory`."""
    return unpacked(EXPORTED / f"{name}.tar.xz", directory, lambda: _tensors(case_of(name)))


def unpacked(path: Path, directory: Path, tensors_of_case: Callable[[], dict[str, Array]]) -> Path:
    """Write the export in an archive; returns `directory`."""
    with tarfile.open(path) as archive:
        archive.extractall(directory, filter="data")
    files: dict[str, list[Part]] = json.loads((directory / "parts.json").read_text(encoding="utf-8"))
    rest = (directory / "rest.bin").read_bytes()
    has_case = any(source for parts in files.values() for _, _, source in parts)
    tensors = tensors_of_case() if has_case else {}
    for file, parts in files.items():
        pieces = []
        for _, size, source in parts:
            if source is None:
                piece, rest = rest[:size], rest[size:]
            else:
                piece = _bytes_of(tensors[source[0]], source[1], is_transposed=source[2])
            pieces.append(piece)
        (directory / file).write_bytes(b"".join(pieces))
    (directory / "parts.json").unlink()
    (directory / "rest.bin").unlink()
    return directory


def _tensors(case: str) -> dict[str, Array]:
    with tempfile.TemporaryDirectory() as folder:
        tensors: dict[str, Array] = load_file(write_family_checkpoint(case, Path(folder)) / "model.safetensors")
        return tensors


def parts_of(weights: bytes, spans: list[tuple[int, int]], tensors: dict[str, Array]) -> tuple[list[Part], bytes]:
    """The pieces of a file, and the rest: `spans` are offsets and sizes of what the graph reads from it."""
    known: dict[bytes, Source] = {}
    for (name, tensor), kind, is_transposed in product(tensors.items(), _KINDS, (True, False)):
        known[_bytes_of(tensor, kind, is_transposed=is_transposed)] = (name, kind, is_transposed)
    parts: list[Part] = []
    rest, place = [], 0
    for offset, size in sorted(set(spans)):
        if size < _LEAST_BYTES or weights[offset : offset + size] not in known or offset < place:
            continue
        if offset > place:
            parts.append((place, offset - place, None))
            rest.append(weights[place:offset])
        parts.append((offset, size, known[weights[offset : offset + size]]))
        place = offset + size
    if place < len(weights):
        parts.append((place, len(weights) - place, None))
        rest.append(weights[place:])
    return parts, b"".join(rest)


def _bytes_of(tensor: Array, kind: str, *, is_transposed: bool) -> bytes:
    turned = np.swapaxes(tensor, -1, -2) if is_transposed and tensor.ndim > 1 else tensor
    return np.ascontiguousarray(turned.astype(_KINDS[kind])).tobytes()
