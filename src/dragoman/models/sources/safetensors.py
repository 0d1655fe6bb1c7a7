"""Reads the tensors of a safetensors checkpoint, one file or shards, without copying them.

Does: find the files, map them, hand out numpy views by name. Does not: convert, or know how matrices are quantised
(`quantised` does).
Called by the loader and through `weights`, once per start. bfloat16 appears as ml_dtypes.bfloat16.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from dragoman.files.pickled_weights import conversion, is_pickle
from dragoman.models.config import ModelError, read_json, shown
from dragoman.models.sources.base import WeightSource
from dragoman.models.sources.layout import Header, Quantised
from dragoman.models.sources.quantised import QuantisedCheckpoint, find_layout, quantised_matrices
from dragoman.panics import CATCH_PANICS, Panicked

Array: TypeAlias = np.ndarray[Any, Any]

_SINGLE_FILE = "model.safetensors"
_LFS_BEGINNING = b"version https://git-lfs"
_LFS_HELP = "it is only git-lfs's note of where the weights are; `git lfs pull` in its directory brings them"
_LENGTH_BYTES = 8  # of the number a file begins with: the bytes of its header
# Once it is read, a header takes up to 15 times its bytes. So it must be a small part of its file, or describe at most some
# ten thousand tensors. Headers of models take a thousandth of their files.
_LARGE_HEADER, _HEADER_SHARE = 1 << 20, 16

# The names of element types in a file, of those that models are stored in.
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "U8": np.uint8}

# Those that quantised matrices, and what belongs to them, are stored in besides.
_OTHER_DTYPES = {
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "I8": np.int8,
    "I32": np.int32,
    "I64": np.int64,
}


class Checkpoint:
    """The tensors of one model directory by their Hugging Face names, mapped into memory. A context manager."""

    def __init__(self, model_dir: Path) -> None:
        self._model_dir = model_dir
        self._tensors: dict[str, _StoredTensor] = {}

    def __enter__(self) -> Self:
        for path in weight_files(self._model_dir):
            tensors = _map_tensors(path)
            twice = next((name for name in tensors if name in self._tensors), None)
            if twice is not None:
                raise ModelError(f"{path} holds tensor {shown(twice)}, which another file of the checkpoint holds too")
            self._tensors.update(tensors)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._tensors.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    @property
    def headers(self) -> dict[str, Header]:
        """The type and shape of every tensor, by the files."""
        return {name: Header(stored.type_name, stored.shape) for name, stored in self._tensors.items()}

    def stored(self, name: str) -> Array:
        """The tensor in its own type and shape, a view of its file. Raises: ModelError if nothing here is of that type."""
        stored = self._tensors[name]
        dtype: Any = _DTYPES.get(stored.type_name) or _OTHER_DTYPES.get(stored.type_name)
        if dtype is None:
            raise ModelError(f"tensor {name!r} has elements of type {stored.type_name}, which no weights use")
        tensor: Array = stored.data.view(dtype).reshape(stored.shape)
        return tensor

    def tensor(self, name: str, shape: tuple[int, ...]) -> Array:
        """The tensor `name`, a view of its file; changes go to a copy.

        Raises: ModelError if it is missing, its shape is not `shape`, or a weight may not have its element type.
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
    """The place of a tensor. `data`: its bytes in the mapped file, u8 [size]."""

    type_name: str
    shape: tuple[int, ...]
    data: Array


def _map_tensors(path: Path) -> dict[str, _StoredTensor]:
    """The file's tensors by name, not copied: the library's own reading would copy every tensor on one core."""
    header, begin = _read_header(path)
    try:
        # private to this process, so that arrays are writable, which the runtime asks for; nothing writes
        contents = np.asarray(np.memmap(path, dtype=np.uint8, mode="c"))[begin:]
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    return {
        name: _StoredTensor(entry["dtype"], tuple(entry["shape"]), contents[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


def file_tensors(path: Path) -> dict[str, Array]:
    """All tensors of one file, views of it. Raises: ModelError if it cannot be read, or holds what no weight may be."""
    tensors = {}
    for name, stored in _map_tensors(path).items():
        if stored.type_name not in _DTYPES:
            allowed = ", ".join(_DTYPES)
            raise ModelError(f"{path}: tensor {name!r} has elements of type {stored.type_name}, allowed: {allowed}")
        tensors[name] = stored.data.view(_DTYPES[stored.type_name]).reshape(stored.shape)
    return tensors


class SafetensorsWeights:
    """The weights of a directory, as `opening.StoredWeights` describes them."""

    def __init__(self, model_dir: Path, *, keeps_mxfp4: bool = False, keeps_rows: bool = False) -> None:
        """Raises: ModelError if there are none, or they are quantised in a way that is not followed."""
        self._model_dir = model_dir
        self._layout, described = find_layout(model_dir, keeps_mxfp4=keeps_mxfp4, keeps_rows=keeps_rows)
        self._weight_files = tuple(weight_files(model_dir))
        self.files = self._weight_files if described is None else (*self._weight_files, described)

    @property
    def quantised(self) -> str | None:
        """The method by which they are quantised, in words; None = they are not."""
        return None if self._layout is None else self._layout.label

    @property
    def recompressed(self) -> tuple[str, ...]:
        """None: whatever is quantised stays so, or is not told as a loss (fp8, and MXFP4 as a type that was asked for)."""
        return ()

    @property
    def smallest_group(self) -> int | None:
        """See `StoredWeights`."""
        return min((matrix.group_size for matrix in self._matrices.values() if matrix.group_size), default=None)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, quantised matrices as such. Raises: ModelError."""
        parts = {part for matrix in self._matrices.values() for part in matrix.parts}
        shapes = {name: header.shape for name, header in self._headers.items() if name not in parts}
        return shapes | {name: matrix.shape for name, matrix in self._matrices.items()}

    def packed_bytes(self) -> dict[str, int]:
        """See `StoredWeights`."""
        return {name: matrix.packed_bytes for name, matrix in self._matrices.items() if matrix.group_size}

    def open(self) -> AbstractContextManager[WeightSource]:
        """The tensors."""
        checkpoint = Checkpoint(self._model_dir)
        return checkpoint if self._layout is None else QuantisedCheckpoint(checkpoint, self._layout)

    @cached_property
    def _headers(self) -> dict[str, Header]:
        headers = (_read_header(path)[0] for path in self._weight_files)
        return {
            name: Header(entry["dtype"], tuple(entry["shape"])) for header in headers for name, entry in header.items()
        }

    @cached_property
    def _matrices(self) -> Mapping[str, Quantised]:
        return quantised_matrices(self._layout, self._headers)


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a file, and the offset of the tensors' bytes; the library checks that it is true.

    Source: huggingface.co/docs/safetensors, "Format".
    """
    try:
        size = _header_bytes(path)
        with CATCH_PANICS, safe_open(path, framework="np"):
            pass
        with path.open("rb") as file:
            file.seek(_LENGTH_BYTES)
            header = json.loads(file.read(size))
    except (SafetensorError, Panicked, OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    header.pop("__metadata__", None)
    return header, _LENGTH_BYTES + size


def _header_bytes(path: Path) -> int:
    """The length of a file's header in bytes. Raises: ValueError if it is longer than that of any model."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    most = max(_LARGE_HEADER, path.stat().st_size // _HEADER_SHARE)
    if size > most:
        raise ValueError(f"its header has {size} bytes, allowed: at most {most}")
    return size


def _unreadable(path: Path, error: Exception) -> ModelError:
    why = f"{error}; if it arrived in part, bring it again" if isinstance(error, SafetensorError) else str(error)
    why = _LFS_HELP if _is_lfs_pointer(path) else why
    return ModelError(f"{path} is not a readable safetensors file: {why}")


def _is_lfs_pointer(path: Path) -> bool:
    """True for what git leaves in the place of a large file that it did not bring."""
    try:
        with path.open("rb") as file:
            return file.read(len(_LFS_BEGINNING)) == _LFS_BEGINNING
    except OSError:
        return False


def weight_files(model_dir: Path) -> list[Path]:
    """The safetensors files of a model directory: model.safetensors, or the index's shards, or all there are.

    Raises: ModelError if there are none, or the index is invalid or names a file that is missing or lies elsewhere.
    """
    single, index = model_dir / _SINGLE_FILE, model_dir / f"{_SINGLE_FILE}.index.json"
    if single.is_file():
        return [single]
    if index.exists():
        names = _shard_names(index)
        missing = [name for name in names if not (model_dir / name).is_file()]
        if missing:
            raise ModelError(f"{index} names {missing[0]!r}, which does not exist")
        return [model_dir / name for name in names]
    files = sorted(path for path in model_dir.glob("*.safetensors") if path.is_file())
    if not files:
        raise ModelError(f"{model_dir} holds no *.safetensors file{_instead(model_dir)}")
    return files


def _instead(model_dir: Path) -> str:
    """A hint on what a directory without safetensors has instead, and what to do."""
    pickle = next((path.name for path in sorted(model_dir.glob("*")) if is_pickle(path.name)), None)
    if pickle is None:
        return "; bring them from where the model came from (`dragoman pull ORG/NAME` does, for a model of the hub)"
    target = str(model_dir.resolve()) + "-safetensors"
    return (
        f", but {pickle}, a pickle, which can run code when it is read; convert it, where you trust it: "
        f"{conversion(str(model_dir), target)}"
    )


def _shard_names(index: Path) -> list[str]:
    """The files that an index names, sorted."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index} weight_map is {shown(weight_map)}, allowed: an object of tensors and their files")
    for name in weight_map.values():
        if not isinstance(name, str) or name in ("", ".", "..") or set(name) & set("/\\\0"):
            raise ModelError(f"{index} weight_map names {shown(name)}, allowed: files of the same directory")
    return sorted(set(weight_map.values()))
