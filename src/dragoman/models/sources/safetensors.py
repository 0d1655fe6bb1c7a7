"""Reads the tensors of a safetensors checkpoint, one file or shards, as views without copying them.

Called by the loader and through `weights`, once per start. bfloat16 appears as ml_dtypes.bfloat16.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from dragoman.errors import CATCH_PANICS, Panicked
from dragoman.files.model_texts import conversion, is_pickle
from dragoman.models.config import ModelError, read_json, shown
from dragoman.models.sources.base import Array, StoredTensor
from dragoman.models.sources.layout import Header, Quantised
from dragoman.models.sources.quantised import Layout, find_layout

_SINGLE_FILE = "model.safetensors"
_LFS_BEGINNING = b"version https://git-lfs"
_LFS_HELP = "it is only git-lfs's note of where the weights are; `git lfs pull` in its directory brings them"
_LENGTH_BYTES = 8  # bytes of the number that a file begins with: its header's length
# Once it is read, a header takes up to 15 times its bytes. So it must be a small part of its file, or describe at most some
# ten thousand tensors. Headers of models take a thousandth of their files.
_LARGE_HEADER, _HEADER_SHARE = 1 << 20, 16

# Names of the element types of models in files.
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "U8": np.uint8}

# Further types, of quantised matrices and their parts.
_OTHER_DTYPES = {
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "I8": np.int8,
    "I32": np.int32,
    "I64": np.int64,
}


class Checkpoint:
    """The tensors of a directory, mapped into memory. A context manager. `layout`: of matrices in several tensors."""

    def __init__(self, model_dir: Path, layout: Layout | None = None) -> None:
        self._model_dir, self._layout = model_dir, layout
        self._tensors: dict[str, _Mapped] = {}
        self._quantised: Mapping[str, Quantised] = {}
        self._parts: set[str] = set()

    def __enter__(self) -> Self:
        for path in weight_files(self._model_dir):
            tensors = _map_tensors(path)
            twice = next((name for name in tensors if name in self._tensors), None)
            if twice is not None:
                raise ModelError(f"{path} holds tensor {shown(twice)}, which another file of the checkpoint holds too")
            self._tensors.update(tensors)
        if self._layout is not None:
            self._quantised = self._layout.find(self._tensors)
            self._parts = {part for matrix in self._quantised.values() for part in matrix.parts}
        return self

    def __exit__(self, *error: object) -> None:
        self._tensors.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._quantised or (name in self._tensors and name not in self._parts)

    def __iter__(self) -> Iterator[str]:
        yield from self._quantised
        for name in self._tensors:
            if name not in self._parts and not self._is_empty(name):
                yield name

    def stored(self, name: str) -> Array:
        """The tensor in its own type and shape, a view of its file. Raises: ModelError for an unknown type."""
        return self._tensors[name].numbers(f"tensor {name!r}", {**_DTYPES, **_OTHER_DTYPES})

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """A view of the file, or a matrix; changes go to a copy. Raises: ModelError if name, shape or type is wrong."""
        found = self._quantised.get(name) or self._tensors.get(name)
        if found is None:
            raise ModelError(f"{self._model_dir}: the checkpoint has no tensor {name!r}")
        if found.shape != shape:
            kind = f" ({self._layout.label})" if self._layout is not None and name in self._quantised else ""
            raise ModelError(f"tensor {name!r}{kind} has shape {list(found.shape)}, config.json implies {list(shape)}")
        return found.read(self) if isinstance(found, Quantised) else found.numbers(f"tensor {name!r}")

    def _is_empty(self, name: str) -> bool:
        """True if the layout does not need the tensor, or it is a bias of zeros, which quantisers often add."""
        if self._layout is None:
            return False
        stem = name.removesuffix(".bias")
        is_bias = stem != name and f"{stem}.weight" in self._quantised
        is_unread = any(re.search(pattern, name) for pattern in self._layout.unread)
        return is_unread or (is_bias and not self.stored(name).any())


@dataclass(frozen=True, slots=True)
class _Mapped(Header):
    data: Array

    def numbers(self, named: str, types: Mapping[str, Any] = _DTYPES) -> Array:
        if self.type_name not in types:
            raise ModelError(f"{named} has elements of type {self.type_name}, allowed: {', '.join(types)}")
        tensor: Array = self.data.view(types[self.type_name]).reshape(self.shape)
        return tensor


def _map_tensors(path: Path) -> dict[str, _Mapped]:
    """The file's tensors, not copied: the library's own reading would copy every tensor on one core."""
    header, begin = _read_header(path)
    try:
        # private to this process, so that arrays are writable, which the runtime asks for; nothing writes
        contents = np.asarray(np.memmap(path, dtype=np.uint8, mode="c"))[begin:]
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    return {
        name: _Mapped(entry["dtype"], tuple(entry["shape"]), contents[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


def file_tensors(path: Path) -> dict[str, Array]:
    return {name: mapped.numbers(f"{path}: tensor {name!r}") for name, mapped in _map_tensors(path).items()}


class SafetensorsWeights:
    """The weights of a directory, told from the headers of its files.

    `files`: those that hold or describe them. `recompressed`: the quantised types that are stored in another one.
    """

    recompressed: tuple[str, ...] = ()

    def __init__(self, model_dir: Path, *, keeps_mxfp4: bool = False, keeps_rows: bool = False) -> None:
        self._model_dir = model_dir
        self._layout, described = find_layout(model_dir, keeps_mxfp4=keeps_mxfp4, keeps_rows=keeps_rows)
        self._weight_files = tuple(weight_files(model_dir))
        self.files = self._weight_files if described is None else (*self._weight_files, described)

    @property
    def quantised(self) -> str | None:
        """The method by which they are quantised, in words."""
        return None if self._layout is None else self._layout.label

    @property
    def smallest_group(self) -> int | None:
        return min((matrix.group_size for matrix in self._matrices.values() if matrix.group_size), default=None)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        parts = {part for matrix in self._matrices.values() for part in matrix.parts}
        shapes = {name: header.shape for name, header in self._headers.items() if name not in parts}
        return shapes | {name: matrix.shape for name, matrix in self._matrices.items()}

    def packed_bytes(self) -> dict[str, int]:
        """The bytes of each matrix that stays packed in a graph. Raises: ModelError."""
        return {name: matrix.packed_bytes for name, matrix in self._matrices.items() if matrix.group_size}

    def open(self) -> Checkpoint:
        return Checkpoint(self._model_dir, self._layout)

    @cached_property
    def _headers(self) -> dict[str, Header]:
        headers = (_read_header(path)[0] for path in self._weight_files)
        return {
            name: Header(entry["dtype"], tuple(entry["shape"])) for header in headers for name, entry in header.items()
        }

    @cached_property
    def _matrices(self) -> Mapping[str, Quantised]:
        return {} if self._layout is None else self._layout.find(self._headers)


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a file, checked by the library, and the offset of the bytes. Source: huggingface.co/docs/safetensors."""
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
    try:
        with path.open("rb") as file:
            return file.read(len(_LFS_BEGINNING)) == _LFS_BEGINNING
    except OSError:
        return False


def weight_files(model_dir: Path) -> list[Path]:
    """model.safetensors, or the index's shards, or all files. Raises: ModelError, also for names of other directories."""
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
    pickle = next((path.name for path in sorted(model_dir.glob("*")) if is_pickle(path.name)), None)
    if pickle is None:
        return "; bring them from where the model came from (`dragoman pull ORG/NAME` does, for a model of the hub)"
    target = str(model_dir.resolve()) + "-safetensors"
    return (
        f", but {pickle}, a pickle, which can run code when it is read; convert it, where you trust it: "
        f"{conversion(str(model_dir), target)}"
    )


def _shard_names(index: Path) -> list[str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index} weight_map is {shown(weight_map)}, allowed: an object of tensors and their files")
    for name in weight_map.values():
        if not isinstance(name, str) or name in ("", ".", "..") or set(name) & set("/\\\0"):
            raise ModelError(f"{index} weight_map names {shown(name)}, allowed: files of the same directory")
    return sorted(set(weight_map.values()))
