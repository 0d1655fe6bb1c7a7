"""Reads the tensors of a safetensors checkpoint, one file or shards, without copying them.

Does: find the files, map them, hand out numpy views by name. Does not: convert or quantise.
Called by the loader and through `weights`, once per start. bfloat16 appears as ml_dtypes.bfloat16.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from dragoman.models.config import ModelError
from dragoman.models.sources.read_ahead import read_ahead

Array: TypeAlias = np.ndarray[Any, Any]

_LENGTH_BYTES = 8  # of the number a file begins with: the bytes of its header

# The names of element types in a file, of those that models are stored in.
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "U8": np.uint8}


class Checkpoint:
    """The tensors of one model directory by their Hugging Face names, mapped into memory. A context manager."""

    def __init__(self, model_dir: Path) -> None:
        self._model_dir = model_dir
        self._tensors: dict[str, _StoredTensor] = {}

    def __enter__(self) -> Self:
        paths = weight_files(self._model_dir)
        read_ahead(paths)
        for path in paths:
            self._tensors.update(_map_tensors(path))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._tensors.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Array:
        """The tensor `name`, a view of its file: whoever changes it changes a copy.

        Raises: ModelError if it is missing, its shape is not `shape`, or its element type is none that a weight may have.
        """
        if name not in self._tensors:
            raise ModelError(f"{self._model_dir}: the checkpoint has no tensor {name!r}")
        stored = self._tensors[name]
        if stored.shape != shape:
            raise ModelError(f"tensor {name!r} has shape {list(stored.shape)}, config.json implies {list(shape)}")
        if stored.type_name not in _DTYPES:
            allowed = ", ".join(_DTYPES)
            raise ModelError(f"tensor {name!r} has elements of type {stored.type_name}, allowed: {allowed}")
        tensor: Array = stored.data.view(_DTYPES[stored.type_name]).reshape(shape)
        return tensor


@dataclass(frozen=True, slots=True)
class _StoredTensor:
    """Where a tensor lies. `data`: its bytes in the mapped file, u8 [size]."""

    type_name: str
    shape: tuple[int, ...]
    data: Array


def _map_tensors(path: Path) -> dict[str, _StoredTensor]:
    """The file's tensors by name. The library checks the file; its own reading would copy every tensor on one core.

    Source: huggingface.co/docs/safetensors, "Format".
    """
    try:
        with safe_open(path, framework="np"):
            pass
        # private to this process, so that arrays are writable, which the runtime asks for; nothing writes
        contents = np.asarray(np.memmap(path, dtype=np.uint8, mode="c"))
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is not a readable safetensors file: {error}") from error
    begin = _LENGTH_BYTES + int.from_bytes(contents[:_LENGTH_BYTES].tobytes(), "little")
    header = json.loads(contents[_LENGTH_BYTES:begin].tobytes())
    header.pop("__metadata__", None)
    return {
        name: _StoredTensor(entry["dtype"], tuple(entry["shape"]), contents[begin:][slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


def weight_files(model_dir: Path) -> list[Path]:
    """The safetensors files of a model directory: the index's shards, or the single file.

    Raises: ModelError if there are none, or the index names a file that is missing.
    """
    index = model_dir / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        missing = [name for name in names if not (model_dir / name).exists()]
        if missing:
            raise ModelError(f"{index} names {missing[0]!r}, which does not exist")
        return [model_dir / name for name in names]
    files = sorted(model_dir.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{model_dir} holds no *.safetensors file")
    return files
