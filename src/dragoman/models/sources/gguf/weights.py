"""The weights of a GGUF model, as those of any other checkpoint. Called once per start, on any thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.errors import ModelError
from dragoman.gguf.files import GgufModel, read_gguf
from dragoman.gguf.mmproj import seeing_part
from dragoman.models.sources.gguf.naming import Entry, entries, seeing_entries
from dragoman.models.sources.gguf.stored import GGUF_FORMATS, GROUP_SIZE, NUMBERS, MappedFiles, packed_types

_SCALE_BYTES = 2


class GgufWeights:
    """The weights of a GGUF file, see `SafetensorsWeights`."""

    def __init__(self, model: Path, *, keeps_mxfp4: bool = False, keeps_rows: bool = False) -> None:
        self._keeps = {"keeps_mxfp4": keeps_mxfp4, "keeps_rows": keeps_rows}
        self._packed = packed_types(keeps_mxfp4=keeps_mxfp4)
        self._model: GgufModel = read_gguf(model)
        self._seeing = seeing_part(model)
        self.files = (*self._model.files, *(self._seeing.model.files if self._seeing is not None else ()))

    @cached_property
    def _entries(self) -> dict[str, Entry]:
        seeing = {} if self._seeing is None else seeing_entries(self._seeing)
        return {**entries(self._model), **seeing}

    @property
    def smallest_group(self) -> int | None:
        return GROUP_SIZE if not self._keeps["keeps_rows"] and self.packed_bytes() else None

    @property
    def quantised(self) -> str | None:
        types = dict.fromkeys(entry.type_name for entry in self._entries.values() if len(entry.shape) > 1)
        named = [name for name in types if name not in NUMBERS]
        return f"GGUF {', '.join(named)}" if named else None

    @property
    def recompressed(self) -> tuple[str, ...]:
        types = {entry.type_name for entry in self._entries.values() if len(entry.shape) > 1}
        return tuple(sorted(types - self._packed.keys() - NUMBERS.keys()))

    def packed_bytes(self) -> dict[str, int]:
        """Values, and a scale for each group; of kept rows their bytes in the file."""
        if self._keeps["keeps_rows"]:
            kept = {name: entry for name, entry in self._entries.items() if entry.type_name in GGUF_FORMATS}
            return {name: entry.num_bytes for name, entry in kept.items() if len(entry.shape) > 1}
        return {
            name: int(np.prod(entry.shape)) * self._packed[entry.type_name] // 8
            + int(np.prod(entry.shape)) // GROUP_SIZE * _SCALE_BYTES
            for name, entry in self._entries.items()
            if len(entry.shape) > 1 and entry.type_name in self._packed
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self._entries.items()}

    @contextmanager
    def open(self) -> Iterator[GgufSource]:
        files = MappedFiles(**self._keeps)
        try:
            yield GgufSource(self._model, self._entries, files)
        finally:
            files.close()


class GgufSource:
    def __init__(self, model: GgufModel, tensors: dict[str, Entry], files: MappedFiles) -> None:
        self._model, self._entries, self._files = model, tensors, files

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Any:
        entry = self._entries.get(name)
        if entry is None:
            raise ModelError(f"{self._model.path}: the model has no tensor {name!r}")
        if entry.shape == shape:
            return entry.read(self._files)
        if _without_ones(entry.shape) != _without_ones(shape):
            raise ModelError(f"tensor {name!r} has shape {list(entry.shape)}, its metadata implies {list(shape)}")
        return np.asarray(entry.read(self._files)).reshape(shape)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)
