"""Finds the files of a GGUF model, and reads their headers: metadata that is checked, and shapes of tensors.

Called at a start, on any thread. Source of the names of split files: llama.cpp's gguf-split.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

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


Config = dict[str, Any]


def head_size(model: GgufModel) -> int:
    name = model.architecture
    size = read_value(model, "attention.key_length")
    if not isinstance(size, int):
        size = model.metadata.count(f"{name}.embedding_length") // max(head_counts(model)[0], 1)
    if size < 1:
        key = "attention.key_length" if f"{name}.attention.key_length" in model.metadata else "embedding_length"
        raise model.metadata.error(f"{name}.{key}", "what makes heads of at least 1 dimension")
    return size


def head_counts(model: GgufModel) -> tuple[int, int]:
    """(heads, key/value heads). Raises: ModelError if they are not said."""
    heads = read_value(model, "attention.head_count")
    if not isinstance(heads, int):
        raise model.metadata.error(f"{model.architecture}.attention.head_count", "an integer")
    kv_heads = read_value(model, "attention.head_count_kv")
    return heads, kv_heads if isinstance(kv_heads, int) and kv_heads else heads


def value_heads(model: GgufModel) -> tuple[int, int, int]:
    """(heads of keys, heads of values, size of the latter) of layers that keep a state. Raises: ModelError."""
    name, values = model.architecture, model.metadata
    keys, heads, width = (values.count(f"{name}.ssm.{key}") for key in ("group_count", "time_step_rank", "inner_size"))
    if not keys:
        raise values.error(f"{name}.ssm.group_count", "an integer of at least 1")
    if not heads or heads % keys or width % heads:
        raise values.error(f"{name}.ssm.time_step_rank", f"a multiple of {keys} that divides {width}")
    return keys, heads, width // heads


def layer_counts(model: GgufModel) -> tuple[int, int]:
    """(layers, those after them that guess further tokens). Raises: ModelError if they are not said."""
    name, values = model.architecture, model.metadata
    both, guessing = values.count(f"{name}.block_count"), values.count(f"{name}.nextn_predict_layers", 0)
    if guessing >= max(both, 1):
        raise values.error(f"{name}.nextn_predict_layers", f"an integer below the {both} layers of {name}.block_count")
    return both - guessing, guessing


def read_value(model: GgufModel, name: str) -> Any:
    """The number or flag of a key, or of a list of equal ones for the layers. Raises: ModelError."""
    key = f"{model.architecture}.{name}"
    if not model.metadata.is_list(key):
        if name in _FLAGS:
            return model.metadata.flag(key, False) if key in model.metadata else None
        return model.metadata.number(key)
    listed = model.metadata.listed(key, float)
    if not all(type(value) in (int, float) for value in listed[:1]):  # all are of one type
        raise model.metadata.error(key, "a number, or one for each layer")
    values = {value for value in listed if value}
    if len(values) > 1 or (name not in _MAY_BE_ZERO and 0 in listed):
        raise model.metadata.error(key, "the same value for every layer")
    return next(iter(values), None)


_FLAGS = ("use_parallel_residual", "expert_weights_norm")
_MAY_BE_ZERO = ("attention.head_count_kv",)  # 0 in layers that do not attend


def has_part(model: GgufModel, name: str) -> bool:
    return any(tensor.startswith("blk.") and tensor.split(".", 2)[-1].startswith(name) for tensor in model.tensors)


def tensor_shape(model: GgufModel, name: str) -> tuple[int, ...]:
    if name not in model.tensors:
        raise ModelError(f"{model.path} has no tensor {name!r}")
    return model.tensors[name].shape


def layer_shape(model: GgufModel, name: str) -> tuple[int, ...]:
    found = next((tensor for key, tensor in model.tensors.items() if key.endswith(f".{name}")), None)
    if found is None:
        raise ModelError(f"{model.path} has no tensor 'blk.*.{name}'")
    return found.shape
