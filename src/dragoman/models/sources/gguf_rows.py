"""Reads the stored forms of GGUF tensors: numbers, Q8_0 and Q4_0 as packed matrices, others as lazy rows.

Rows are read on the storage's threads. Sources: the blocks' layouts, ggml's ggml-common.h; the `gguf` package computes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from dragoman.errors import ModelError
from dragoman.gguf.header import GgufTensor
from dragoman.models.sources.base import Array, LazyRows, PackedMatrix
from dragoman.models.sources.mxfp4 import Mxfp4Matrix

NUMBERS: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
PACKED = {"Q8_0": 8, "Q4_0": 4}
"""The types that stay as they are in a graph, with their bits."""

MXFP4 = "MXFP4"  # also stays packed, as integers of 8 bits, with `keeps_mxfp4`

GGUF_FORMATS = {
    "Q4_0": "i4", "Q4_1": "i4m", "Q5_0": "i5", "Q5_1": "i5m", "Q8_0": "i8", "IQ4_NL": "iq4_nl", "MXFP4": "mxfp4",
    "Q2_K": "q2_k", "Q3_K": "q3_k", "Q4_K": "q4_k", "Q5_K": "q5_k", "Q6_K": "q6_k", "F16": "f16", "BF16": "bf16",
}  # fmt: skip
"""The types that our kernels read as they are, by the formats of native/formats.hpp."""

GROUP_SIZE = 32  # columns that share a scale, in all of them

_SCALE_BYTES = 2


def packed_types(*, keeps_mxfp4: bool) -> dict[str, int]:
    return PACKED | ({MXFP4: 8} if keeps_mxfp4 else {})


class FilePlace(NamedTuple):
    descriptor: int
    begin: int


class MappedFiles:
    """Files in memory, each opened and mapped once. `keeps_mxfp4`, `keeps_rows`: see `stored_weights`."""

    def __init__(self, *, keeps_mxfp4: bool = False, keeps_rows: bool = False) -> None:
        self.keeps_mxfp4, self.keeps_rows = keeps_mxfp4, keeps_rows
        self._mapped: dict[Path, tuple[BinaryIO, Array]] = {}

    def bytes_of(self, tensor: GgufTensor) -> Array:
        """The tensor's bytes, u8 [rows, bytes of a row], a view of the file. Raises: ModelError."""
        if tensor.path not in self._mapped:
            try:
                # private to this process, so that arrays are writable, which the runtime asks for; nothing writes
                file = tensor.path.open("rb")
                self._mapped[tensor.path] = file, np.asarray(np.memmap(file, dtype=np.uint8, mode="c"))
            except (OSError, ValueError) as error:
                raise ModelError(f"{tensor.path} is not a readable GGUF file: {error}") from error
        data = self._mapped[tensor.path][1][tensor.begin : tensor.begin + tensor.size]
        if len(data) != tensor.size:
            raise ModelError(f"{tensor.path} shrank while it was read")
        num_rows = 1
        for size in tensor.shape[:-1]:
            num_rows *= size
        return data.reshape(num_rows, -1)

    def place_of(self, tensor: GgufTensor) -> FilePlace:
        return FilePlace(self._mapped[tensor.path][0].fileno(), tensor.begin)

    def numbers(self, tensor: GgufTensor) -> Array:
        data, kind = self.bytes_of(tensor), NUMBERS.get(tensor.type_name)
        rows = QuantisedRows(data, tensor.type_name, tensor.shape[-1]) if kind is None else data.view(kind)
        return np.array(rows, dtype=np.float32).reshape(tensor.shape)

    def close(self) -> None:
        for file, _ in self._mapped.values():
            file.close()
        self._mapped.clear()


class QuantisedRows(LazyRows):
    """Rows of a quantised type [out, in]; `np.asarray` of them or of a part has the values, f32."""

    def __init__(
        self,
        stored: Array,
        type_name: str,
        num_columns: int,
        order: Array | None = None,
        place: FilePlace | None = None,
    ) -> None:
        """`stored`: u8 [rows, bytes of a row]; `place`: in a file, if known; `order`: of the chosen rows, None = all."""
        self.type_name = type_name
        self.place, self.order = place, order
        self._stored, self._num_columns = stored, num_columns

    @property
    def data(self) -> Array:
        """u8 [out, bytes of a row]; a view of what is stored if it lies there in this order, else a copy."""
        data: Array = self._stored if self.order is None else self._stored[self.order]
        return data

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._stored if self.order is None else self.order), self._num_columns

    def __getitem__(self, rows: slice | Array) -> QuantisedRows:
        if isinstance(rows, slice) and self.order is None:
            part, place = self._stored[rows], self.place
            if place is not None:
                place = place._replace(begin=place.begin + rows.indices(len(self))[0] * self._stored.shape[1])
            return QuantisedRows(part, self.type_name, self._num_columns, None, place)
        order = np.arange(len(self)) if self.order is None else self.order
        return QuantisedRows(self._stored, self.type_name, self._num_columns, order[rows], self.place)

    def values(self) -> Array:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        with np.errstate(invalid="ignore", over="ignore"):  # NaN scales are found when the weights are stored
            values: Array = dequantize(np.ascontiguousarray(self.data), GGMLQuantizationType[self.type_name])
        return values.reshape(self.shape)


def stored_rows(
    data: Array,
    type_name: str,
    num_columns: int,
    *,
    keeps_mxfp4: bool = False,
    keeps_rows: bool = False,
    place: FilePlace | None = None,
) -> Array | PackedMatrix | QuantisedRows:
    """Rows of a matrix as they are stored, and `place` in a file. Shapes: data u8 [out, bytes of a row] -> [out, in]."""
    if type_name in NUMBERS and not (keeps_rows and type_name in GGUF_FORMATS):
        numbers: Array = data.view(NUMBERS[type_name])
        return numbers
    if keeps_rows:
        return QuantisedRows(data, type_name, num_columns, None, place)
    if type_name == MXFP4 and keeps_mxfp4:
        return _mxfp4(data.reshape(len(data), num_columns // GROUP_SIZE, -1)).packed()
    if type_name not in PACKED:
        return QuantisedRows(data, type_name, num_columns)
    blocks = data.reshape(len(data), num_columns // GROUP_SIZE, -1)
    scales: Array = np.ascontiguousarray(blocks[:, :, :_SCALE_BYTES]).view(np.float16)[:, :, 0]
    quants = blocks[:, :, _SCALE_BYTES:]
    if type_name == "Q8_0":
        values: Array = np.ascontiguousarray(quants).view(np.int8)
    else:  # the low halves of the bytes are a block's first columns
        values = np.concatenate([quants & 0x0F, quants >> 4], axis=2).view(np.int8)
        values -= 8
    return PackedMatrix(values.reshape(len(data), num_columns), scales, None, PACKED[type_name])


def _mxfp4(blocks: Array) -> Mxfp4Matrix:
    """The matrix of blocks, u8 [out, groups, 17]: an exponent, and codes whose low halves are a block's first columns."""
    low, high = blocks[:, :, 1:] & 0x0F, blocks[:, :, 1:] >> 4
    codes = np.concatenate([low, high], axis=2)
    return Mxfp4Matrix(codes[:, :, 0::2] | codes[:, :, 1::2] << 4, blocks[:, :, 0])
