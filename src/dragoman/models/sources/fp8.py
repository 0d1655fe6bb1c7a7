"""Matrices of 8-bit floats with a scale for all, for each row, or for each block of rows and columns.

No kernel reads this form (docs/performance-log.md): values are compressed like those of any other matrix.
Sources: OCP 8-bit Floating Point Specification (OFP8) 1.0; blocks, DeepSeek-V3 (arXiv:2412.19437), section 3.3.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from dragoman.models.config import Config, ModelError
from dragoman.models.sources.base import Array, LazyRows, Stack
from dragoman.models.sources.layout import FLOATS, Headers, Quantised, Tensors, block_size, refuse_other_keys

FP8_TYPES = ("F8_E4M3", "F8_E5M2")
_SCALE_TYPES = (*FLOATS, "F8_E8M0")
_SCALES = ("_scale_inv", "_scale")  # endings of a matrix' scales; both multiply

_CODES = np.arange(256, dtype=np.uint8)
_VALUES = {
    np.dtype(kind): _CODES.view(kind).astype(np.float32) for kind in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
}


class Fp8Matrix(LazyRows):
    """A matrix [out, in]. Shapes: codes fp8 [out, in]; scales f32 [row blocks, column blocks].

    row_blocks, column_blocks i64: the block of each row and column.
    """

    def __init__(self, codes: Array, scales: Array, row_blocks: Array, column_blocks: Array) -> None:
        self._codes, self._scales = codes, scales
        self._row_blocks, self._column_blocks = row_blocks, column_blocks

    @property
    def shape(self) -> tuple[int, ...]:
        rows, columns = self._codes.shape
        return rows, columns

    @property
    def T(self) -> Fp8Matrix:
        return Fp8Matrix(self._codes.T, self._scales.T, self._column_blocks, self._row_blocks)

    def __getitem__(self, rows: slice | Array) -> Fp8Matrix:
        return Fp8Matrix(self._codes[rows], self._scales, self._row_blocks[rows], self._column_blocks)

    def values(self) -> Array:
        values: Array = _VALUES[self._codes.dtype][self._codes.view(np.uint8)]
        with np.errstate(over="ignore", invalid="ignore"):  # storing them checks for what is not finite
            values *= self._scales[self._row_blocks][:, self._column_blocks]
        return values


def fp8_matrix(codes: Array, scales: Array, block: tuple[int, int]) -> Fp8Matrix:
    rows, columns = (np.arange(size) // step for size, step in zip(codes.shape, block, strict=True))
    return Fp8Matrix(codes, scales, rows, columns)


def quantised_fp8(headers: Headers, name: str, block: tuple[int, int] | None) -> Quantised:
    """The matrix or stack of that name. `block`: rows and columns that share one of several scales. Raises: ModelError."""
    shape = headers[name].shape
    scales = next((name + ending for ending in _SCALES if name + ending in headers), None)
    if scales is None:
        raise ModelError(
            f"tensor {name!r} has elements of type {headers[name].type_name}, but no {name + _SCALES[1]!r}"
        )
    found = headers[scales]
    if found.type_name not in _SCALE_TYPES:
        raise ModelError(
            f"tensor {scales!r} has elements of type {found.type_name}, allowed: {', '.join(_SCALE_TYPES)}"
        )
    if len(shape) not in (2, 3) or not all(shape):
        raise ModelError(f"tensor {name!r} has shape {list(shape)}, allowed for fp8: a matrix or a stack of matrices")
    size, grid = _blocks(shape, found.shape, block, scales)

    def read(tensors: Tensors) -> Any:
        with np.errstate(over="ignore", invalid="ignore"):
            factors = tensors.stored(scales).astype(np.float32).reshape(grid)
        codes = tensors.stored(name)
        if len(shape) == 2:
            return fp8_matrix(codes, factors, size)
        return Stack(shape, lambda index: fp8_matrix(codes[index], factors[index], size))

    return Quantised(shape, (name, scales), read)


def _blocks(
    shape: tuple[int, ...], scales: tuple[int, ...], block: tuple[int, int] | None, name: str
) -> tuple[tuple[int, int], tuple[int, ...]]:
    """The rows and columns that share a scale, and the scales' shape as that of a grid of blocks."""
    *stack, rows, columns = shape
    forms = [((rows, columns), (*stack, 1, 1)), ((1, columns), (*stack, rows, 1))]
    if block is not None:
        forms.append((block, (*stack, -(-rows // block[0]), -(-columns // block[1]))))
    for size, grid in forms:
        without_ends = grid[:-1] if grid[-1] == 1 else grid
        if scales in (grid, without_ends) or (np.prod(grid) == 1 and scales in ((), (1,))):
            return size, grid
    allowed = ", ".join(str(list(grid)) for _, grid in forms)
    raise ModelError(f"tensor {name!r} has shape {list(scales)}, allowed for a matrix of {list(shape)}: {allowed}")


class Fp8:
    """The layouts of DeepSeek, Qwen, Mistral and vLLM (quant_method fp8), and of Llama (fbgemm_fp8)."""

    label = "fp8"
    # Scales for activations, keys and values, which only other libraries round.
    unread = (r"\.(input_scale|activation_scale|input_scale_ub|output_scale|[qkv]_scale|prob_scale)$",)

    def __init__(self, config: Config) -> None:
        self._block = block_size(config, "weight_block_size") if "weight_block_size" in config else None
        config.skip(
            "activation_scale_ub", "fmt", "scale_fmt", "kv_cache_scheme", "kv_cache_quant_method"
        )  # the tensors' types tell it
        refuse_other_keys(config)

    def find(self, headers: Headers) -> dict[str, Quantised]:
        names = [name for name, found in headers.items() if found.type_name in FP8_TYPES]
        return {name: quantised_fp8(headers, name, self._block) for name in names}
