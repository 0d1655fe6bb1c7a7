"""Packs compressed matrices in compressed-tensors' format pack-quantized.

Source: github.com/vllm-project/compressed-tensors, "pack-quantized": integers of 32 bits hold values of few bits, the
first in the lowest; weights are packed along a row, zero points down a column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dragoman.models.storage.groups import Grouped, pack_int4
from dragoman.tools.compress.scaling import Packing

Array = np.ndarray[Any, Any]


def packed_tensors(module: str, matrix: Grouped, bits: int) -> dict[str, Array]:
    rows, groups, size = matrix.values.shape
    zero_points = _packed(np.ascontiguousarray(matrix.zero_points[:, :, 0].T), bits)
    return {
        f"{module}.weight_packed": _packed(matrix.values.reshape(rows, groups * size), bits),
        f"{module}.weight_scale": matrix.scales[:, :, 0],
        f"{module}.weight_zero_point": np.ascontiguousarray(zero_points.T),
        f"{module}.weight_shape": np.array([rows, groups * size], dtype=np.int64),
    }


def quantization_config(packing: Packing, ignored: Sequence[str]) -> dict[str, Any]:
    """The entry in config.json. `ignored`: the uncompressed modules."""
    weights = {
        "num_bits": packing.bits,
        "type": "int",
        "symmetric": False,
        "strategy": "group",
        "group_size": packing.group_size,
        "block_structure": None,
        "dynamic": False,
        "actorder": None,
        "observer": "minmax",
        "observer_kwargs": {},
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(ignored),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _packed(values: Array, bits: int) -> Array:
    """Values u8 [rows, columns] in integers of 32 bits [rows, columns / (32 / bits)], filled up with zeros."""
    count = 32 // bits
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % count)))
    packed = pack_int4(padded) if bits == 4 else padded.reshape(-1)
    integers: Array = packed.view("<i4").reshape(len(values), -1)
    return integers
