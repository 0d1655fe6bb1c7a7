"""Finds the files of a GGUF model, and reads their headers. Called at a start, on any thread.

Source of the names of split files: llama.cpp's gguf-split.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dragoman.errors import ModelError
from dragoman.gguf.header import GgufTensor, Metadata, read_header

_PART = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_PICTURES = re.compile(r"(^|[-_.])mmproj([-_.]|$)", re.IGNORECASE)  # in the names of files that see
_MOST_PARTS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class GgufModel:
    """The headers of a model's files, equal only to itself: unchanged files are read once."""

    files: tuple[Path, ...]
    metadata: Metadata
    tensors: Mapping[str, GgufTensor]

    @property
    def path(self) -> Path:
        return self.files[0]

    @property
    def architecture(self) -> str:
        return self.metadata.text("general.architecture")


def read_gguf(model: Path) -> GgufModel:
    return _read_files(gguf_files(model))


def read_gguf_file(path: Path) -> GgufModel:
    return _read_files((path,))


_NAMED: dict[Path, Path] = {}


def see_with(model: Path, file: Path | None) -> None:
    """Name the file that sees for the model at that path, in this process; None = one beside the model."""
    if file is None:
        _NAMED.pop(model.absolute(), None)
    else:
        _NAMED[model.absolute()] = file.absolute()


def named_to_see(model: Path) -> Path | None:
    return _NAMED.get(model.absolute())


def files_that_see(model: Path) -> tuple[Path, ...]:
    """The named file; else those in the model's directory whose names say that they see."""
    if (named := named_to_see(model)) is not None:
        return (named,)
    directory = model if model.is_dir() else model.parent
    return tuple(path for path in sorted(directory.glob("*.gguf")) if path.is_file() and _PICTURES.search(path.name))


def _read_files(files: tuple[Path, ...]) -> GgufModel:
    try:
        states = tuple((path.stat().st_size, path.stat().st_mtime_ns) for path in files)
    except OSError as error:
        raise ModelError(f"{files[0]} cannot be read: {error}") from error
    return _read(files, states)


@lru_cache(maxsize=4)
def _read(files: tuple[Path, ...], _states: tuple[tuple[int, int], ...]) -> GgufModel:
    headers = [read_header(path) for path in files]
    metadata = headers[0].metadata
    count = metadata.count("split.count", 1)
    if count != len(files):
        raise ModelError(f"{files[0]} is one of {count} files, of which {len(files)} exist: {files[0].parent}")
    tensors: dict[str, GgufTensor] = {}
    for path, header in zip(files, headers, strict=True):
        for tensor in header.tensors:
            if tensor.name in tensors:
                raise ModelError(f"{path} holds tensor {tensor.name!r}, which another file of the model holds too")
            tensors[tensor.name] = tensor
    return GgufModel(files, metadata, tensors)


def gguf_files(model: Path) -> tuple[Path, ...]:
    """The files of the model, in order. Raises: ModelError if there is none, if there are several, or a part is missing."""
    if model.is_dir():
        return _files_of_directory(model)
    if not model.is_file():
        raise ModelError(f"{model} does not exist")
    part = _PART.fullmatch(model.name)
    return (model,) if part is None else _parts(model.parent, part)


def gguf_models(directory: Path) -> dict[str, Path]:
    paths = sorted(path for path in directory.glob("*.gguf") if path.is_file() and not _PICTURES.search(path.name))
    first = {gguf_stem(path): path for path in reversed(paths)}
    return dict(sorted(first.items()))


def gguf_stem(path: Path) -> str:
    part = _PART.fullmatch(path.name)
    return part["stem"] if part else path.stem


def _files_of_directory(directory: Path) -> tuple[Path, ...]:
    by_stem = gguf_models(directory)
    if len(by_stem) != 1:
        named = ", ".join(path.name for path in sorted(by_stem.values())) or "none"
        raise ModelError(f"{directory} holds {len(by_stem)} GGUF models, allowed: one, or name its file: {named}")
    (path,) = by_stem.values()
    return gguf_files(path)


def _parts(directory: Path, part: re.Match[str]) -> tuple[Path, ...]:
    count = int(part["count"])
    if not 1 <= count <= _MOST_PARTS:
        raise ModelError(f"{directory / part.string} is one of {count} files, allowed: 1 to {_MOST_PARTS}")
    paths = tuple(directory / f"{part['stem']}-{index:05}-of-{count:05}.gguf" for index in range(1, count + 1))
    missing = next((path for path in paths if not path.is_file()), None)
    if missing is not None:
        raise ModelError(f"{missing} does not exist, one of the {count} files of {part['stem']}")
    return paths
