"""Quantises matrices and writes them as AWQ, GPTQ, compressed-tensors and fp8 checkpoints do, one number after another.

Does: from a matrix to the tensors of a layout, and to the numbers that these stand for. Does not: quantise well, or use any
of the code that it tests. Written from the formats' public descriptions; used by the tests of quantised checkpoints.

Every packer takes the name of a matrix and its values f32 [out, in], and returns (tensors, numbers): the tensors that a
checkpoint has in its place, and f32 [out, in].
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

Array = np.ndarray[Any, Any]
Packed = tuple[dict[str, Array], Array]
Packer = Callable[[str, Array], Packed]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight neighbours each nibble of a word holds, from the lowest

_LARGEST = {np.dtype(ml_dtypes.float8_e4m3fn): 448.0, np.dtype(ml_dtypes.float8_e5m2): 57344.0}


@dataclass
class Groups:
    """Integers with scales and zero points. Shapes: values [out, in]; scales, zeros [out, groups]; groups [in]."""

    values: Array
    scales: Array
    zeros: Array
    groups: Array

    @property
    def numbers(self) -> Array:
        """What they stand for."""
        differences = self.values.astype(np.float32) - self.zeros[:, self.groups].astype(np.float32)
        return differences * self.scales[:, self.groups].astype(np.float32)


def quantised(
    matrix: Array, bits: int, group: int, *, symmetric: bool, order: Array | None = None, scale_type: Any = np.float16
) -> Groups:
    """Rounded to the nearest of 2 ** bits integers from 0. `order`: columns of a group are neighbours in this order."""
    columns = matrix.shape[1]
    size = columns if group == -1 else group
    groups = np.empty(columns, dtype=np.int64)
    groups[np.arange(columns) if order is None else order] = np.arange(columns) // size
    most, middle = 2**bits - 1, 2 ** (bits - 1)
    num_groups = columns // size
    scales = np.empty((len(matrix), num_groups), dtype=scale_type)
    zeros = np.empty((len(matrix), num_groups), dtype=np.int64)
    for number in range(num_groups):
        part = matrix[:, groups == number]
        if symmetric:
            scales[:, number] = np.abs(part).max(axis=1) / (middle - 1)
            zeros[:, number] = middle
        else:
            low, high = np.minimum(part.min(axis=1), 0), np.maximum(part.max(axis=1), 0)
            scales[:, number] = (high - low) / most
            zeros[:, number] = np.clip(np.rint(-low / scales[:, number].astype(np.float32)), 1, most)
    exact = scales.astype(np.float32)[:, groups]
    values = np.clip(np.rint(matrix / exact) + zeros[:, groups], 0, most).astype(np.int64)
    return Groups(values, scales, zeros, groups)


def words(values: Array, bits: int, order: tuple[int, ...] | None = None) -> Array:
    """Neighbours of a row in words of 32 bits, the last one filled with zeros. `order`: which one each place holds."""
    in_word = 32 // bits
    rows, columns = values.shape
    padded = np.zeros((rows, -(-columns // in_word) * in_word), dtype=np.uint32)
    padded[:, :columns] = values
    packed = np.zeros((rows, padded.shape[1] // in_word), dtype=np.uint32)
    for place in range(in_word):
        neighbour = place if order is None else order[place]
        packed |= padded[:, neighbour::in_word] << np.uint32(bits * place)
    return packed.view(np.int32)


def awq(group: int = 32, *, symmetric: bool = False) -> Packer:
    """AutoAWQ's gemm layout: all tensors [in, out]. Symmetric ones have no zero points."""

    def pack(name: str, matrix: Array) -> Packed:
        made, stem = quantised(matrix, 4, group, symmetric=symmetric), name.removesuffix(".weight")
        tensors = {
            f"{stem}.qweight": words(made.values.T, 4, AWQ_ORDER),
            f"{stem}.scales": np.ascontiguousarray(made.scales.T),
        }
        if not symmetric:
            tensors[f"{stem}.qzeros"] = words(made.zeros.T, 4, AWQ_ORDER)
        return tensors, made.numbers

    return pack


def gptq(
    bits: int = 4, group: int = 32, *, symmetric: bool = True, act_order: bool = False, is_v2: bool = False
) -> Packer:
    """AutoGPTQ's layout: words of neighbouring columns, all tensors [in, out]; zero points minus one but in v2."""

    def pack(name: str, matrix: Array) -> Packed:
        stem = name.removesuffix(".weight")
        order = np.random.RandomState(matrix.shape[1]).permutation(matrix.shape[1]) if act_order else None
        made = quantised(matrix, bits, group, symmetric=symmetric, order=order)
        stored_zeros = made.zeros.T if is_v2 else made.zeros.T - 1
        tensors = {
            f"{stem}.qweight": np.ascontiguousarray(words(made.values, bits).T),
            f"{stem}.qzeros": words(stored_zeros, bits),
            f"{stem}.scales": np.ascontiguousarray(made.scales.T),
            f"{stem}.g_idx": made.groups.astype(np.int32),
            f"{stem}.bias": np.zeros(len(matrix), dtype=np.float16),  # as AutoGPTQ adds one everywhere
        }
        return tensors, made.numbers

    return pack


def pack_quantized(
    bits: int = 4,
    group: int = 32,
    *,
    symmetric: bool = True,
    act_order: bool = False,
    scale_type: Any = ml_dtypes.bfloat16,
) -> Packer:
    """compressed-tensors' pack-quantized."""

    def pack(name: str, matrix: Array) -> Packed:
        order = np.random.RandomState(matrix.shape[1]).permutation(matrix.shape[1]) if act_order else None
        made = quantised(matrix, bits, group, symmetric=symmetric, order=order, scale_type=scale_type)
        tensors = {
            f"{name}_packed": words(made.values, bits),
            f"{name}_scale": made.scales,
            f"{name}_shape": np.array(matrix.shape, dtype=np.int64),
        }
        if not symmetric:
            tensors[f"{name}_zero_point"] = np.ascontiguousarray(words(made.zeros.T, bits).T)
        if act_order:
            tensors[f"{name}_g_idx"] = made.groups.astype(np.int32)
        return tensors, made.numbers

    return pack


def int_quantized(*, symmetric: bool = True, per_tensor: bool = False) -> Packer:
    """compressed-tensors' int-quantized: bytes, with a scale for each row or for all."""

    def pack(name: str, matrix: Array) -> Packed:
        whole = matrix.reshape(1, -1) if per_tensor else matrix
        made = quantised(whole, 8, -1, symmetric=symmetric, scale_type=np.float32)
        tensors = {
            name: (made.values - 128).reshape(matrix.shape).astype(np.int8),
            f"{name}_scale": made.scales.reshape(-1) if per_tensor else made.scales,
        }
        if not symmetric:
            tensors[f"{name}_zero_point"] = (made.zeros - 128).astype(np.int8).reshape(tensors[f"{name}_scale"].shape)
        return tensors, made.numbers.reshape(matrix.shape)

    return pack


def fp8(block: tuple[int, int] | str, ending: str = "_scale_inv", kind: Any = ml_dtypes.float8_e4m3fn) -> Packer:
    """Floats of 8 bits with a scale for each block of rows and columns, each "row", or the "tensor"."""

    def pack(name: str, matrix: Array) -> Packed:
        rows, columns = matrix.shape
        step = {"tensor": (rows, columns), "row": (1, columns)}[block] if isinstance(block, str) else block
        scales = np.empty((-(-rows // step[0]), -(-columns // step[1])), dtype=np.float32)
        codes, numbers = np.empty(matrix.shape, dtype=kind), np.empty(matrix.shape, dtype=np.float32)
        for i in range(len(scales)):
            for j in range(scales.shape[1]):
                where = (slice(i * step[0], (i + 1) * step[0]), slice(j * step[1], (j + 1) * step[1]))
                scales[i, j] = np.abs(matrix[where]).max() / _LARGEST[np.dtype(kind)]
                codes[where] = (matrix[where] / scales[i, j]).astype(kind)
                numbers[where] = codes[where].astype(np.float32) * scales[i, j]
        stored = scales.reshape(()) if block == "tensor" else scales
        return {name: codes, name + ending: stored}, numbers

    return pack


_PACKED = ("proj", "w1", "w2", "w3", "query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h", "kv_a_proj_with_mqa")


def is_packed(name: str, tensor: Array) -> bool:
    """Whether quantisers pack the tensor: the matrices of attention, MLPs and experts, not heads, routers and towers."""
    parts = name.split(".")
    is_linear = parts[-1] == "weight" and parts[-2].endswith(_PACKED)
    return tensor.ndim == 2 and is_linear and "vision" not in name


@dataclass(frozen=True)
class PackedPair:
    """Two checkpoints that mean the same: one quantised, one of the numbers that it stands for."""

    packed: Path
    plain: Path


def write_pair(
    source: Path,
    directory: Path,
    packer: Packer,
    quantization_config: dict[str, Any],
    chosen: Callable[[str], bool] = lambda _name: True,
) -> PackedPair:
    """Both of them, made from an ordinary checkpoint in one file. `chosen`: which matrices are quantised, of all."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    pair = PackedPair(directory / "packed", directory / "plain")
    packed: dict[str, Array] = {}
    plain: dict[str, Array] = {}
    stored = load_file(source / "model.safetensors")
    for name, tensor in stored.items():
        if is_packed(name, tensor) and chosen(name):
            tensors, plain[name] = packer(name, tensor.astype(np.float32))
            packed |= {part: values for part, values in tensors.items() if part not in stored or part == name}
        else:
            packed[name] = plain[name] = tensor
    for path, tensors, change in (
        (pair.packed, packed, {"quantization_config": quantization_config}),
        (pair.plain, plain, {}),
    ):
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(config | change), encoding="utf-8")
        save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, path / "model.safetensors")
    return pair
