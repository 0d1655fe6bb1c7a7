"""The weights of a GGUF model, as those of any other checkpoint: under its names, with rows in its order.

Each tensor is made from the file's when it is asked for. Opened once per start, on any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.errors import ModelError
from dragoman.gguf.architecture_row import Architecture, Order
from dragoman.gguf.config import ROPE_TENSORS, find_architecture
from dragoman.gguf.files import GgufModel, head_counts, head_size, layer_counts, read_gguf, value_heads
from dragoman.gguf.header import TYPES, GgufTensor
from dragoman.gguf.mmproj import SeeingPart, seeing_part
from dragoman.gguf.projectors import HEADS, LAYERS
from dragoman.models.sources.base import Array, Joined, Stack, Turned, with_columns
from dragoman.models.sources.gguf_rows import GGUF_FORMATS, GROUP_SIZE, NUMBERS, MappedFiles, packed_types, stored_rows
from dragoman.models.stored.gguf_names import tensor_names

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


Read = Callable[[MappedFiles], Any]

_RATES = "ssm_a"  # minus the exponential of the checkpoint's values
_PLAIN_NORM = "ssm_norm"  # without the added one of other norms; a row for each group of heads


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of the checkpoint. `type_name`: of its stored values."""

    shape: tuple[int, ...]
    type_name: str
    read: Read

    @property
    def num_bytes(self) -> int:
        return next(prod(self.shape) // count * size for name, count, size in TYPES.values() if name == self.type_name)


@lru_cache(maxsize=4)  # a start asks for a model's entries several times
def entries(model: GgufModel) -> Mapping[str, Entry]:
    """Every tensor by its name in a checkpoint, unknown ones by their own. Raises: ModelError."""
    naming = _Naming(model)
    found: dict[str, Entry] = {}
    for tensor in model.tensors.values():
        if tensor.name in ROPE_TENSORS or naming.guesses(tensor):
            continue
        for name, entry in naming.entries_of(tensor):
            if name in found:
                raise ModelError(f"{model.path} holds {name!r} in two forms, one of them as {tensor.name!r}")
            found[name] = entry
    return found


def seeing_entries(part: SeeingPart) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for name, tensors in part.tensors():
        if name in found:
            raise ModelError(f"{part.model.path} holds {name!r} in two forms")
        found[name] = _seeing_entry(part, tensors)
    return found


def _seeing_entry(part: SeeingPart, tensors: tuple[GgufTensor, ...]) -> Entry:
    """The entry of a vision tensor: a layer's matrix as it is stored; joined tensors and all others as numbers."""
    tensor, *others = tensors
    projector = part.projector
    if others:
        if any(other.shape != tensor.shape for other in others):
            raise ModelError(f"{tensor.path} tensors {tensor.name!r} and {others[0].name!r} have different shapes")
        size, *rest = tensor.shape
        if len(rest) == 3:  # frames of patches
            shape = (size, rest[0], len(tensors), *rest[1:])
            return Entry(shape, "F32", lambda files: np.stack([files.numbers(tensor) for tensor in tensors], axis=2))
        shape = (size * len(tensors), *rest)
        return Entry(shape, "F32", lambda files: np.concatenate([files.numbers(tensor) for tensor in tensors]))
    if len(tensor.shape) == 2 and tensor.name.startswith((LAYERS, "mm.")) and "input_projection" not in tensor.name:
        return _in_halves(part, tensor) if projector.takes_turns else _whole(tensor)
    if projector.has_flat_patches and len(tensor.shape) == 4:
        size = tensor.shape[0]
        return Entry(
            (size, prod(tensor.shape[1:])),
            "F32",
            lambda files: files.numbers(tensor).transpose(0, 2, 3, 1).reshape(size, -1),
        )
    if tensor.name in projector.batched:
        shape = (*[1] * (3 - len(tensor.shape)), *tensor.shape)
        return Entry(shape, "F32", lambda files: files.numbers(tensor).reshape(shape))
    is_raised = np.float32(tensor.name == projector.raised)
    return Entry(tensor.shape, "F32", lambda files: files.numbers(tensor) - is_raised)


def _in_halves(part: SeeingPart, tensor: GgufTensor) -> Entry:
    """The entry of a matrix. Of queries and keys a file has the rows of a head's two halves alternate."""
    entry = _whole(tensor)
    if not tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
        return entry
    heads = part.model.metadata.count(HEADS)
    if not heads or tensor.shape[0] % (2 * heads):
        raise part.model.metadata.error(HEADS, f"heads of whole pairs of the {tensor.shape[0]} rows of {tensor.name}")
    order = row_order("pairs", tensor.shape[0], heads, heads, "attn_q")
    return replace(entry, read=lambda files: entry.read(files)[order])


class _Naming:
    def __init__(self, model: GgufModel) -> None:
        self._model = model
        self._architecture: Architecture = find_architecture(model)
        self._names = tensor_names(self._architecture)
        self._joined = {part: (target, parts) for target, parts in self._architecture.joined.items() for part in parts}
        self._num_layers, self._num_guessing = layer_counts(model)
        self._orders: dict[tuple[str, int], Array] = {}  # shared by all layers

    def guesses(self, tensor: GgufTensor) -> bool:
        place, _ = place_of(tensor.name)
        return place is not None and self._num_guessing > 0 and place >= self._num_layers

    def entries_of(self, tensor: GgufTensor) -> Iterator[tuple[str, Entry]]:
        place, part = place_of(tensor.name)
        stem, _, ending = part.rpartition(".")
        names = self._names.outer if place is None else self._names.layer
        prefix = "" if place is None else f"{self._names.layers}.{place}."
        joined = self._joined.get(part) or self._joined.get(stem)
        if place is not None and joined is not None:
            yield from self._join(tensor, place, prefix, *joined, ending if stem in self._joined else "")
        elif part in names:
            yield from self._named(tensor, part, prefix + names[part])
        elif stem in names:
            yield from self._named(tensor, stem, f"{prefix}{names[stem]}.{ending}")
        elif place is not None and stem in self._names.cuts:
            yield from self._cut(tensor, self._names.cuts[stem], prefix, ending)
        else:
            yield tensor.name, _whole(tensor)

    def _named(self, tensor: GgufTensor, part: str, name: str) -> Iterator[tuple[str, Entry]]:
        entry = _whole(tensor)
        if "{expert}" in name:
            yield from ((name.replace("{expert}", str(index)), expert) for index, expert in enumerate(_each(tensor)))
            return
        if part == _RATES:
            entry = replace(entry, read=lambda files: self._logarithm(tensor, files))
        elif part == _PLAIN_NORM:
            entry = Entry(
                (prod(tensor.shape),), tensor.type_name, lambda files: np.asarray(_read(tensor, files)).reshape(-1)
            )
        elif self._architecture.has_raised_norms and part.endswith("norm") and name.endswith(".weight"):
            entry = replace(entry, read=lambda files: np.asarray(_read(tensor, files), dtype=np.float32) - 1.0)
        if part.removesuffix(".weight") in self._architecture.orders:
            entry = self._ordered(entry, part)
        yield name, self._turned(entry, part) if not name.endswith(".bias") else entry

    def _turned(self, entry: Entry, part: str) -> Entry:
        if part not in self._architecture.turned:
            return entry
        *others, rows, columns = entry.shape
        return Entry((*others, columns, rows), entry.type_name, lambda files: Turned(entry.read(files)))

    def _ordered(self, entry: Entry, part: str) -> Entry:
        by_column = self._architecture.orders[part] == "turns_by_column"
        try:
            order = self._order(part, entry.shape[-1 if by_column else 0])
        except ValueError as error:
            raise ModelError(f"{self._model.path} {part} cannot be put in order: {error}") from error
        if by_column:
            return replace(entry, read=lambda files: with_columns(entry.read(files), order))
        return replace(entry, read=lambda files: entry.read(files)[order])

    def _order(self, part: str, size: int) -> Array:
        if (part, size) not in self._orders:
            order = self._architecture.orders[part]
            if order in ("turns", "turns_by_column"):
                made = turns_order(size, *value_heads(self._model))
            else:
                made = row_order(order, size, *head_counts(self._model), part)
            self._orders[part, size] = made
        return self._orders[part, size]

    def _logarithm(self, tensor: GgufTensor, files: MappedFiles) -> Array:
        rates = np.asarray(_read(tensor, files), dtype=np.float32)
        if not (rates < 0).all():
            raise ModelError(f"{self._model.path} tensor {tensor.name!r} has numbers that are not below 0")
        values: Array = np.log(-rates)
        return values

    def _cut(
        self, tensor: GgufTensor, targets: tuple[str, ...], prefix: str, ending: str
    ) -> Iterator[tuple[str, Entry]]:
        for targets_of_one, whole in self._experts_of(tensor, targets):
            begin = 0
            for index, (target, size) in enumerate(
                zip(targets_of_one, self._sizes(whole.shape[0], len(targets)), strict=True)
            ):
                rows = slice(begin, begin + size)
                part = Entry(
                    (size, *whole.shape[1:]),
                    whole.type_name,
                    lambda files, rows=rows, whole=whole: whole.read(files)[rows],  # type: ignore[misc]
                )
                name = ("attn_q", "attn_k", "attn_v")[index] if len(targets) > 2 else ""
                yield (
                    f"{prefix}{target}.{ending}",
                    self._ordered(part, name) if name in self._architecture.orders else part,
                )
                begin += size

    def _experts_of(self, tensor: GgufTensor, targets: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Entry]]:
        if "{expert}" not in targets[0]:
            yield targets, _whole(tensor)
            return
        for index, expert in enumerate(_each(tensor)):
            yield tuple(target.replace("{expert}", str(index)) for target in targets), expert

    def _sizes(self, num_rows: int, num_parts: int) -> tuple[int, ...]:
        if num_parts == 2:
            return num_rows // 2, num_rows - num_rows // 2
        (heads, kv_heads), size = head_counts(self._model), head_size(self._model)
        return heads * size, kv_heads * size, num_rows - (heads + kv_heads) * size

    def _join(
        self, tensor: GgufTensor, place: int, prefix: str, target: str, parts: tuple[str, ...], ending: str
    ) -> Iterator[tuple[str, Entry]]:
        kind, names = (parts[0], parts[1:]) if parts[0] in ("turns", "latent") else ("", parts)
        suffix = f".{ending}" if ending else ""
        tensors = [self._model.tensors.get(f"blk.{place}.{name}{suffix}") for name in names]
        present = [tensor for tensor in tensors if tensor is not None]
        if len(present) < len(tensors):
            missing = names[tensors.index(None)]
            raise ModelError(f"{self._model.path} has no tensor 'blk.{place}.{missing}{suffix}', but {tensor.name!r}")
        if tensor is not present[0]:
            return
        entry = _latent(present) if kind == "latent" else _joined(present, takes_turns=kind == "turns")
        yield f"{prefix}{target}{suffix}", self._turned(entry, target)


def place_of(name: str) -> tuple[int | None, str]:
    """The layer of a tensor, None if it is in none, and its name there."""
    block, _, rest = name.partition(".")
    index, _, part = rest.partition(".")
    return (
        (int(index), part)
        if block == "blk" and index.isdecimal() and index.isascii() and len(index) < 6
        else (None, name)
    )


def _whole(tensor: GgufTensor) -> Entry:
    return Entry(tensor.shape, tensor.type_name, lambda files: _read(tensor, files))


def _read(tensor: GgufTensor, files: MappedFiles) -> Any:
    data, type_name, columns = files.bytes_of(tensor), tensor.type_name, tensor.shape[-1]
    keeps_mxfp4, keeps_rows = files.keeps_mxfp4, files.keeps_rows

    place = files.place_of(tensor)

    def stored(part: Array, first: int = 0) -> Any:
        begin = place._replace(begin=place.begin + first * part.shape[1])
        return stored_rows(part, type_name, columns, keeps_mxfp4=keeps_mxfp4, keeps_rows=keeps_rows, place=begin)

    if len(tensor.shape) == 1:
        rows: Array = np.asarray(stored(data))
        return rows[0]
    if len(tensor.shape) == 2:
        return stored(data)
    num_rows = len(data) // tensor.shape[0]
    return Stack(tensor.shape, lambda index: stored(data[index * num_rows : (index + 1) * num_rows], index * num_rows))


def _each(tensor: GgufTensor) -> Iterator[Entry]:
    for index in range(tensor.shape[0]):
        yield Entry(tensor.shape[1:], tensor.type_name, lambda files, index=index: _read(tensor, files)[index])  # type: ignore[misc]


def _joined(tensors: list[GgufTensor], *, takes_turns: bool) -> Entry:
    first, second = tensors
    if first.shape != second.shape:
        raise ModelError(f"tensors {first.name!r} and {second.name!r} have shapes {first.shape} and {second.shape}")
    *others, rows, columns = first.shape if len(first.shape) > 2 or not takes_turns else (*first.shape, 1)

    def read(files: MappedFiles) -> Any:
        parts = [_read(tensor, files) for tensor in tensors]
        if columns == 1 and takes_turns:  # biases of experts, [experts, out]
            return np.stack([np.asarray(part, dtype=np.float32) for part in parts], axis=-1).reshape(len(parts[0]), -1)
        if len(first.shape) == 2:
            return Joined(parts, takes_turns=takes_turns)
        shape = (*others, 2 * rows, columns)
        return Stack(shape, lambda index: Joined([part[index] for part in parts], takes_turns=takes_turns))

    shape = (*others, 2 * rows) if columns == 1 and takes_turns else (*others, 2 * rows, columns)
    return Entry(shape, first.type_name, read)


def _latent(tensors: list[GgufTensor]) -> Entry:
    """Keys [heads, rank, size] and values [heads, size, rank] of all heads as the one matrix that both are made by."""
    keys, values = tensors
    if len(keys.shape) != 3 or len(values.shape) != 3 or keys.shape[:2] != (values.shape[0], values.shape[2]):
        raise ModelError(f"tensors {keys.name!r} and {values.name!r} have shapes {keys.shape} and {values.shape}")
    heads, rank, key_size = keys.shape
    num_rows = heads * (key_size + values.shape[1])

    def read(files: MappedFiles) -> Array:
        parts = [np.asarray(_read(keys, files)).swapaxes(1, 2), np.asarray(_read(values, files))]
        matrix: Array = np.concatenate([part.astype(np.float32, copy=False) for part in parts], axis=1)
        return matrix.reshape(num_rows, rank)

    return Entry((num_rows, rank), "F32", read)


def row_order(order: Order, num_rows: int, num_heads: int, num_kv_heads: int, name: str) -> Array:
    """The place in the file of each row of a checkpoint's tensor, i64 [num_rows].

    "pairs": llama.cpp rotates neighbours, so rows of a head's two halves alternate in the file. "by_group": the file
    has all queries, then keys, then values; the checkpoint has for each key/value head its queries, its key and its
    value.
    Raises: ValueError if the rows are not whole heads.
    """
    rows = np.arange(num_rows)
    if order == "pairs":
        heads = num_kv_heads if name == "attn_k" else num_heads
        return rows.reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    size, rest = divmod(num_rows, num_heads + 2 * num_kv_heads)
    if rest:
        raise ValueError(f"{num_rows} rows are not those of {num_heads} queries and {num_kv_heads} keys and values")
    ends = np.cumsum([num_heads * size, num_kv_heads * size])
    parts = [part.reshape(num_kv_heads, -1) for part in np.split(rows, ends)]
    return np.concatenate(parts, axis=1).reshape(-1)


def turns_order(num_rows: int, num_keys: int, num_heads: int, size: int) -> Array:
    """i64 [num_rows] for rows of values' heads: the file has the first head of every key, then the second, and so on.

    Raises: ValueError if there are fewer rows.
    """
    rows = np.arange(num_rows)
    turning = num_heads if num_rows == num_heads else num_heads * size
    if num_rows < turning:
        raise ValueError(f"{num_rows} rows are fewer than those of {num_heads} heads")
    heads = rows[num_rows - turning :].reshape(num_heads // num_keys, num_keys, -1)
    return np.concatenate((rows[: num_rows - turning], heads.swapaxes(0, 1).reshape(-1)))
