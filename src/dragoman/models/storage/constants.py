"""Puts weights into a graph, compressed, in the patterns that the CPU plugin keeps compressed.

Called by the blocks while a graph is built; results hold their values once the storage's parts are done. Packed weights get
their memory in the order in which a graph asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Literal, Protocol, TypeAlias

import ml_dtypes
import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.kernels.native import Memory, of_process
from dragoman.models.config import ModelError
from dragoman.models.sources.base import Array, PackedMatrix, StoredTensor
from dragoman.models.storage.groups import (
    INT4_GROUP_SIZE,
    fits_f16,
    pack_int4,
    put_int4,
    quantize_groups,
    quantize_int8,
    quantize_int8_symmetric,
)
from dragoman.models.storage.row_parts import RowParts

_LEAST_SLAB_BYTES = 64 << 20  # shared by matrices, so that huge pages are full: a slab wastes one of them
_MOST_SLAB_BYTES = 1 << 30
_LINE = 64  # bytes of a cache line, at which kernels read


class WeightMemory:
    """Memory of this process alone. It must live as long as nodes for what was taken are made."""

    is_filled = False
    """True if an earlier start has written what is handed out."""

    def __init__(self) -> None:
        self._slab: Memory | None = None
        self._used = 0
        self._total = 0
        self._taken: list[Memory] = []

    def take(self, num_bytes: int) -> Memory:
        """Memory of `num_bytes`, never handed out again. Raises: OSError; ValueError if a file does not fit."""
        self._taken.append(self._new(num_bytes))
        return self._taken[-1]

    def _new(self, num_bytes: int) -> Memory:
        size = -(-num_bytes // _LINE) * _LINE
        if size >= _LEAST_SLAB_BYTES:
            return of_process(size).part(0, num_bytes)
        if self._slab is None or self._used + size > len(self._slab.data):
            # as much again as there is: unwritten memory takes none, but counts where memory is limited
            slab_bytes = min(max(self._total, _LEAST_SLAB_BYTES), _MOST_SLAB_BYTES)
            self._slab, self._used = of_process(slab_bytes), 0
        begin = self._used
        self._used += size
        self._total += size
        return self._slab.part(begin, num_bytes)


Node: TypeAlias = Any  # openvino.Output: the package has no type information
WeightType = Literal["int8", "int4", "bf16", "f16", "f32"]
StoredType = Literal[WeightType, "int8_symmetric"]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """The format in which a graph stores weights. `keeps_half`: floats of two bytes do not become f32 when compiled.

    `careful_type`: of matrices whose error counts most; None = as the others. `keeps_mxfp4`: those of MXFP4 come
    packed. `is_ours`: our kernels multiply integers (`storage.packing`); `keeps_file_types`: with the values of GGUF
    files.
    """

    stored_type: StoredType
    keeps_half: bool = False
    careful_type: StoredType | None = None
    keeps_mxfp4: bool = False
    is_ours: bool = False
    keeps_file_types: bool = False

    @property
    def careful(self) -> WeightFormat:
        return self if self.careful_type is None else replace(self, stored_type=self.careful_type)

    @property
    def fuses_attention(self) -> bool:
        return self.stored_type in ("int4", "int8", "int8_symmetric")

    @property
    def fuses_mlp(self) -> bool:
        """One matmul for gate and up: pays for int4. Apart, the plugin folds the activation into the gate's matmul."""
        return self.stored_type == "int4"


class GraphWatcher(Protocol):
    """Learns what becomes of the tensors in a graph, to change weights by it. `tensors`: the `Weights`."""

    def product(self, tensors: Any, x: Node, result: Node, *, bias: bool) -> None:
        """`result` is the product of x with a matrix, before a bias is added if there is none, else behind it."""
        ...

    def norm(self, tensors: Any, result: Node, *, offset: float, bias: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class WeightStorage:
    """A format, and the parts that compress into it: a graph's weights are complete when `parts` has finished.

    `memory`: of packed weights. `watcher`: gets the graph's norms and products. `shared`: what `packing` may be asked
    for again, by name and layout: a table whose rows are embeddings, and the head.
    """

    format: WeightFormat
    parts: RowParts
    watcher: GraphWatcher | None = None
    shared: dict[Any, Any] = field(default_factory=dict)
    memory: WeightMemory = field(default_factory=WeightMemory)


def constant(values: Array) -> Node:
    """A constant in the array's own precision; the graph owns a copy."""
    if values.dtype == ml_dtypes.bfloat16:
        bits = np.ascontiguousarray(values).view(np.float16)
        # The tensor only borrows numpy's memory, which is gone before the graph is compiled: copy.
        return ov.op.Constant(ov.Tensor(bits, ov.Shape(values.shape), ov.Type.bf16), shared_memory=False).output(0)
    # Of an array that is not contiguous the runtime forgets that it is f16. (reshape: a 0-d one would become 1-d.)
    return ov.op.Constant(np.ascontiguousarray(values).reshape(values.shape), shared_memory=False).output(0)


def as_f32(node: Node) -> Node:
    """The values as f32 in the graph (the plugin folds the conversion into the consumer)."""
    return node if node.get_element_type() == ov.Type.f32 else ops.convert(node, ov.Type.f32).output(0)


def weight_matrix(weight: StoredTensor, storage: WeightStorage) -> Node:
    """A weight [out, in] as an f32 node over constants in the storage's format; a packed one stays packed but in f32."""
    if isinstance(weight, PackedMatrix):
        if storage.format.stored_type == "f32":
            return _uncompressed(weight, storage)
        return _packed(weight, storage.parts)
    return _compressed(weight, storage)


def _compressed(weight: StoredTensor, storage: WeightStorage) -> Node:
    stored_type = storage.format.stored_type
    if stored_type == "int4" and weight.shape[1] % INT4_GROUP_SIZE == 0:
        return _int4(weight, storage.parts)
    if stored_type == "int8_symmetric":
        return _int8_symmetric(weight, storage.parts)
    if stored_type in ("int8", "int4"):  # int4 of a matrix that does not split into groups falls back to int8
        return _int8(weight, storage.parts)
    return _uncompressed(weight, storage)


def embedding_table(table: StoredTensor, storage: WeightStorage) -> Node:
    """A table [vocab, hidden] as f32 over f16, exact for usual bfloat16; the plugin would widen bf16 at every start."""
    if storage.format.stored_type == "f32":
        return _uncompressed(table, storage)
    stored = _Filled(ov.Type.f16, table.shape)

    def fill(part: slice) -> bool:
        with np.errstate(over="ignore"):  # checked below
            stored.rows[part] = table[part]
        return fits_f16(stored.rows[part])

    if all(storage.parts.run(table.shape, fill)):
        return as_f32(stored.constant)
    return as_f32(constant(np.asarray(table).astype(ml_dtypes.bfloat16)))


class _Filled:
    """A constant of the graph whose memory is filled later. `rows`: its values; of int4 two in a byte."""

    def __init__(self, element_type: ov.Type, shape: tuple[int, ...]) -> None:
        tensor = ov.Tensor(element_type, ov.Shape(shape))
        values: Array = tensor.data
        if element_type == ov.Type.bf16:  # the runtime hands it out as f16
            values = values.view(ml_dtypes.bfloat16)
        num_rows = math.prod(shape[:-1])
        self.rows = values.reshape(num_rows, -1) if values.size % num_rows == 0 else values
        self.constant: Node = ov.op.Constant(tensor, shared_memory=True).output(0)


def _packed(weight: PackedMatrix, parts: RowParts) -> Node:
    """A matrix in groups of its own; only scales lose something, as f16."""
    (num_rows, columns), num_groups, size = weight.shape, weight.num_groups, weight.group_size
    # A single group is stored as our int8 format has it, per channel.
    grouped = (num_rows, num_groups, size) if num_groups > 1 else weight.shape
    per_group = (*grouped[:-1], 1)
    is_half = weight.bits == 4 and size % 2 == 0
    stored = _Filled(_integer_type(weight.values.dtype, is_half), grouped)
    rows = stored.rows.reshape(-1, columns // 2 if is_half else columns)

    def fill(part: Array, where: slice) -> None:
        rows[where] = pack_int4(part).reshape(len(part), -1) if is_half else part

    _submit(weight.values, parts, fill)
    zeros = weight.zero_points
    shifts = None if zeros is None else _integers(np.asarray(zeros).reshape(per_group), weight.bits)
    return _restored(weight.shape, stored.constant, constant(half_scales(weight).reshape(per_group)), shifts)


def _restored(shape: tuple[int, ...], values: Node, scales: Node, zero_points: Node | None = None) -> Node:
    """The numbers, f32 in that shape; values may lie in groups of columns."""
    numbers = ops.convert(values, ov.Type.f16)
    if zero_points is not None:
        numbers = ops.subtract(numbers, ops.convert(zero_points, ov.Type.f16))
    scaled = ops.multiply(numbers, scales)
    if tuple(values.get_shape()) != shape:
        scaled = ops.reshape(scaled, ops.constant(np.array(shape, dtype=np.int64)), special_zero=False)
    return as_f32(scaled.output(0))


def half_scales(weight: PackedMatrix) -> Array:
    """A matrix' scales as f16. Raises: ModelError if they do not fit."""
    with np.errstate(over="ignore"):  # checked below
        scales = np.asarray(weight.scales).astype(np.float16)
    if not fits_f16(scales):
        shape = list(weight.shape)
        raise ModelError(f"a packed matrix of {shape} cannot be stored: scales are not finite, or too large for f16")
    return scales


def _integer_type(dtype: np.dtype[Any], is_half: bool) -> ov.Type:
    if dtype == np.int8:
        return ov.Type.i4 if is_half else ov.Type.i8
    return ov.Type.u4 if is_half else ov.Type.u8


def _integers(values: Array, bits: int) -> Node:
    if bits == 8 or values.size % 2 or values.min() < (-8 if values.dtype == np.int8 else 0) or values.max() > 15:
        return constant(np.ascontiguousarray(values))
    tensor = ov.Tensor(_integer_type(values.dtype, is_half=True), ov.Shape(values.shape))
    tensor.data.reshape(-1)[:] = pack_int4(values)
    return ov.op.Constant(tensor, shared_memory=True).output(0)


def _uncompressed(weight: StoredTensor, storage: WeightStorage) -> Node:
    stored_type = storage.format.stored_type
    stored = _Filled({"bf16": ov.Type.bf16, "f16": ov.Type.f16, "f32": ov.Type.f32}[stored_type], weight.shape)

    def fill(rows: Array, where: slice) -> None:
        with np.errstate(over="ignore"):  # checked below
            stored.rows[where] = rows
        if stored_type == "f16" and not fits_f16(stored.rows[where]):
            raise ValueError("it holds numbers that are not finite, or too large for f16")

    _submit(weight, storage.parts, fill)
    node = as_f32(stored.constant)
    if storage.format.keeps_half and stored_type != "f32":
        node.get_node().get_rt_info()["decompression_0"] = (
            ""  # the runtime's mark for constants that are not to be widened
        )
    return node


def _int8(weight: StoredTensor, parts: RowParts) -> Node:
    shape = weight.shape
    per_row = (*shape[:-1], 1)
    stored, zero_points, scales = (
        _Filled(ov.Type.u8, shape),
        _Filled(ov.Type.u8, per_row),
        _Filled(ov.Type.f16, per_row),
    )

    def fill(rows: Array, where: slice) -> None:
        zero_points.rows[where], scales.rows[where] = quantize_int8(rows, stored.rows[where])

    _submit(weight, parts, fill)
    return _restored(shape, stored.constant, scales.constant, zero_points.constant)


def _int8_symmetric(weight: StoredTensor, parts: RowParts) -> Node:
    shape = weight.shape
    stored, scales = _Filled(ov.Type.i8, shape), _Filled(ov.Type.f16, (*shape[:-1], 1))

    def fill(rows: Array, where: slice) -> None:
        scales.rows[where] = quantize_int8_symmetric(rows, stored.rows[where])

    _submit(weight, parts, fill)
    return _restored(shape, stored.constant, scales.constant)


def _int4(weight: StoredTensor, parts: RowParts) -> Node:
    shape = weight.shape
    num_groups = shape[-1] // INT4_GROUP_SIZE
    per_group = (*shape[:-1], num_groups, 1)
    stored, zero_points, scales = (
        _Filled(ov.Type.u4, (*shape[:-1], num_groups, INT4_GROUP_SIZE)),
        _Filled(ov.Type.u4, per_group),
        _Filled(ov.Type.f16, per_group),
    )
    packed = stored.rows.reshape(-1, shape[-1] // 2)  # two values a byte
    factors, zeros = scales.rows.reshape(-1, num_groups, 1), zero_points.rows.reshape(-1)
    halves = Lock()  # two parts may share a byte of zero points

    def fill(rows: Array, where: slice) -> None:
        found = quantize_groups(rows)
        packed[where] = pack_int4(found.values).reshape(len(rows), -1)
        factors[where] = found.scales
        with halves:
            put_int4(zeros, where.start * num_groups, found.zero_points)

    _submit(weight, parts, fill)
    return _restored(shape, stored.constant, scales.constant, zero_points.constant)


def _submit(weight: StoredTensor, parts: RowParts, fill: Callable[[Array, slice], None]) -> None:
    def fill_part(part: slice) -> None:
        rows = np.ascontiguousarray(weight[part])
        try:
            fill(rows, slice(part.start, part.start + len(rows)))
        except ValueError as error:
            raise ModelError(f"a weight matrix of {list(weight.shape)} cannot be stored: {error}") from error

    parts.submit(weight.shape, fill_part)
