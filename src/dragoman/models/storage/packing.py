"""Puts weight matrices into a graph as our kernels read them: packed, each in its own size, written on all cores.

Called by the blocks while a graph is built; results hold their values once the storage's parts are done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dragoman.kernels.graph import PlacedMatrix
from dragoman.kernels.native import CHUNK, FLOATS, PANEL, Layout, library
from dragoman.models.config import ModelError
from dragoman.models.memory import forget_pages, is_mapped
from dragoman.models.sources.base import Array, PackedMatrix, StoredTensor, is_order
from dragoman.models.sources.gguf_rows import GGUF_FORMATS, QuantisedRows
from dragoman.models.sources.mxfp4 import TwiceMxfp4
from dragoman.models.storage.constants import WeightFormat, WeightStorage, constant, half_scales
from dragoman.models.storage.groups import INT4_GROUP_SIZE, INT8_GROUP_SIZE, fits_f16
from dragoman.models.storage.row_parts import PART_SIZE

_SUPER_GROUP = 256
_AS_STORED_SIZE = 1 << 23  # values: one call packs them, for some milliseconds, without memory of its own


class _Source(NamedTuple):
    """A packed matrix to be. `read`: some of its rows. `write`: puts them in their place in packed bytes."""

    layout: Layout
    read: Callable[[slice], Any]
    write: Callable[[Any, Layout, int, Array], None]
    part_size: int = PART_SIZE


def packed(
    matrix: StoredTensor | QuantisedRows,
    storage: WeightStorage,
    bias: Array | None = None,
    *,
    name: str | None = None,
) -> PlacedMatrix:
    """The matrix [out, in] in the graph: as its file has it if that can be read so, else in the storage's format.

    `name`: of a tensor that is in the graph once, however often it is asked for; None = only part of a tensor.
    """
    source = _source(matrix, storage)
    if name is None:
        return _with_bias(_filled([source], storage), bias)
    key = (name, source.layout)
    if key not in storage.shared:
        storage.shared[key] = _filled([source], storage)
    return _with_bias(storage.shared[key], bias)


def packed_stack(
    matrices: Sequence[StoredTensor],
    storage: WeightStorage,
    *,
    order: Array | None = None,
    bias: Array | None = None,
) -> PlacedMatrix:
    """Matrices of one shape behind each other: as `packed` has them if that is alike for all, else converted.

    `order`: that of their columns, None = they are in order. `bias`: [matrices, out].
    """
    sources = [_source(matrix, storage) for matrix in matrices]
    are_alike = all(source.layout == sources[0].layout for source in sources)
    if not are_alike or not all(is_order(packed_order(matrix), order) for matrix in matrices):
        sources = [_source(_Numbers(matrix, order), storage) for matrix in matrices]
    return _with_bias(_filled(sources, storage), bias)


def common_order(matrices: Sequence[StoredTensor]) -> Array | None:
    order = packed_order(matrices[0])
    return order if all(is_order(packed_order(matrix), order) for matrix in matrices) else None


class _Numbers:
    """A matrix as numbers, with its columns in an order."""

    def __init__(self, matrix: StoredTensor, order: Array | None) -> None:
        self._matrix, self._order = matrix, order
        self.shape = matrix.shape

    def __getitem__(self, rows: slice) -> Array:
        numbers = np.asarray(self._matrix[rows])
        return numbers if self._order is None else numbers[:, self._order]


def _with_bias(node: PlacedMatrix, bias: Array | None) -> PlacedMatrix:
    return node if bias is None else node._replace(bias=constant(bias.astype(np.float32)))


def _source(matrix: StoredTensor | QuantisedRows | _Numbers, storage: WeightStorage) -> _Source:
    outputs, columns = matrix.shape
    if isinstance(matrix, QuantisedRows) and keeps_type(matrix.type_name, storage.format):
        name = GGUF_FORMATS[matrix.type_name]
        layout = Layout(name, _SUPER_GROUP if name.endswith("_k") else CHUNK, outputs, columns)
        return _Source(layout, lambda part: matrix[part], _write_quantised, _AS_STORED_SIZE)
    if isinstance(matrix, PackedMatrix) and isinstance(matrix.values, TwiceMxfp4):
        values = matrix.values
        return _Source(Layout("mxfp4", CHUNK, outputs, columns), lambda part: values[part].file_rows(), _write_rows)
    if isinstance(matrix, PackedMatrix) and keeps_groups(matrix):
        layout = Layout(_format_of(matrix), matrix.group_size, outputs, columns)
        half_scales(matrix)  # refuses what f16 cannot hold, before anything is written
        return _Source(layout, lambda part: matrix[part], _write_matrix)
    if storage.format.stored_type in FLOATS:
        layout = Layout(storage.format.stored_type, CHUNK, outputs, columns)
        return _Source(layout, lambda part: np.ascontiguousarray(matrix[part]), _write_floats)
    is_int4 = storage.format.stored_type == "int4" and columns % INT4_GROUP_SIZE == 0
    layout = Layout("i4z" if is_int4 else "i8z", INT4_GROUP_SIZE if is_int4 else INT8_GROUP_SIZE, outputs, columns)
    return _Source(layout, lambda part: np.ascontiguousarray(matrix[part]), _write_numbers)


def keeps_type(type_name: str, stored: WeightFormat) -> bool:
    return stored.keeps_file_types and type_name in GGUF_FORMATS


def keeps_groups(matrix: PackedMatrix) -> bool:
    return matrix.num_groups == 1 or matrix.group_size % CHUNK == 0


def packed_order(matrix: StoredTensor) -> Array | None:
    """The order in which `packed` has the matrix' columns, None if they are in order."""
    return matrix.column_order if isinstance(matrix, PackedMatrix) and keeps_groups(matrix) else None


def _format_of(matrix: PackedMatrix) -> str:
    if matrix.bits == 4 and matrix.values.dtype == np.int8 and matrix.zero_points is None:
        return "i4"
    if matrix.bits == 4 and matrix.values.dtype == np.uint8:
        return "i4z"
    return "i8" if matrix.zero_points is None and matrix.values.dtype == np.int8 else "i8z"


def _filled(sources: Sequence[_Source], storage: WeightStorage) -> PlacedMatrix:
    """Matrices of one layout behind each other; the storage's threads write, unless an earlier start has written."""
    layout = sources[0].layout
    memory = storage.memory.take(len(sources) * library().packed_bytes(layout))
    placed = PlacedMatrix(memory, layout)
    if memory.is_filled:
        return placed
    for source, space in zip(sources, np.split(memory.data, len(sources)), strict=True):
        work = partial(_fill, source, space)
        storage.parts.submit((layout.outputs, layout.columns), work, unit=PANEL, part_size=source.part_size)
    return placed


def _fill(source: _Source, space: Array, part: slice) -> None:
    try:
        rows = source.read(part)
        source.write(rows, source.layout, part.start, space)
        if isinstance(rows, np.ndarray) and is_mapped(rows):
            forget_pages(rows)  # the checkpoint's pages, which would count as memory of this process
    except ValueError as error:
        shown = [source.layout.outputs, source.layout.columns]
        raise ModelError(f"a weight matrix of {shown} cannot be stored: {error}") from error


def _write_quantised(rows: QuantisedRows, layout: Layout, first: int, out: Array) -> None:
    if layout.format in FLOATS:
        library().pack_floats(layout, first, rows.data.view(FLOATS[layout.format]), out)
    elif rows.place is None:
        _write_rows(rows.data, layout, first, out)
    else:
        library().pack_gguf_file(layout, first, len(rows), rows.place, out, rows.order)


def _write_rows(rows: Array, layout: Layout, first: int, out: Array) -> None:
    library().pack_gguf(layout, first, rows, out)


def _write_floats(rows: Array, layout: Layout, first: int, out: Array) -> None:
    with np.errstate(over="ignore"):  # checked below
        floats = rows.astype(FLOATS[layout.format], copy=False)
    if layout.format == "f16" and not fits_f16(floats):
        raise ValueError("it holds numbers that are not finite, or too large for f16")
    library().pack_floats(layout, first, floats, out)


def _write_matrix(matrix: PackedMatrix, layout: Layout, first: int, out: Array) -> None:
    codes: Any = np.ascontiguousarray(matrix.values)
    zeros = matrix.zero_points
    if layout.format == "i4":
        codes = codes + 8
    elif layout.format == "i8z" and codes.dtype == np.uint8:
        codes = codes ^ 0x80  # signed, and so are zero points: their difference stays
        zeros = np.full(matrix.scales.shape, 128, np.uint8) if zeros is None else zeros
        zeros = zeros ^ 0x80
    elif layout.format == "i4z" and zeros is None:
        zeros = np.zeros(matrix.scales.shape, np.uint8)
    library().pack_groups(layout, first, codes, matrix.scales.astype(np.float16), zeros, out)


def _write_numbers(rows: Array, layout: Layout, first: int, out: Array) -> None:
    library().pack_numbers(layout, first, rows.astype(np.float32) if rows.dtype == np.float64 else rows, out)
