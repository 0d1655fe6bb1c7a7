"""Reads checkpoints as `dragoman compress` writes them, by the format's description alone: for tests of what is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from dragoman.models import LoadedModel, ModelOptions
from dragoman.models.families import read_model
from dragoman.models.loader import compile_source
from dragoman.models.sources.base import Array, PackedMatrix, StoredTensor


def unpack(packed: Array, count: int, bits: int) -> Array:
    """The first `count` values of each row of integers. Shapes: i32 [rows, integers] -> u8 [rows, count]."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    values = (packed.view(np.uint32)[:, :, None] >> shifts) & np.uint32((1 << bits) - 1)
    return values.reshape(len(packed), -1)[:, :count].astype(np.uint8)


class PackedCheckpoint:
    """A `WeightSource` over such a directory."""

    def __init__(self, directory: Path) -> None:
        self.config: dict[str, Any] = json.loads((directory / "config.json").read_text())
        self.quantization: dict[str, Any] = self.config.pop("quantization_config")
        self.bits: int = self.quantization["config_groups"]["group_0"]["weights"]["num_bits"]
        self._tensors: dict[str, Array] = {}
        for path in directory.glob("*.safetensors"):
            self._tensors |= load_file(path)

    def __contains__(self, name: str) -> bool:
        return name in list(self)

    def __iter__(self) -> Iterator[str]:
        for name in self._tensors:
            if name.endswith("_packed"):
                yield name.removesuffix("_packed")
            elif not name.endswith(("_scale", "_zero_point", "_shape")):
                yield name

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """See `WeightSource`."""
        if f"{name}_packed" not in self._tensors:
            assert self._tensors[name].shape == shape
            return self._tensors[name]
        rows, columns = (int(size) for size in self._tensors[f"{name}_shape"])
        assert (rows, columns) == shape
        zero_points = self._tensors[f"{name}_zero_point"]
        return PackedMatrix(
            unpack(self._tensors[f"{name}_packed"], columns, self.bits),
            self._tensors[f"{name}_scale"].astype(np.float32),
            np.ascontiguousarray(unpack(np.ascontiguousarray(zero_points.T), rows, self.bits).T),
            self.bits,
        )

    def load(self, options: ModelOptions) -> LoadedModel:
        """The compiled model."""
        return compile_source(read_model(dict(self.config)), self, options)
