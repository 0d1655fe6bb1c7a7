"""Writes a checkpoint's directory, which appears complete or not at all, with matrices in the format pack-quantized.

Source: github.com/vllm-project/compressed-tensors, "pack-quantized": integers of 32 bits hold values of few bits, the
first in the lowest; weights are packed along a row, zero points down a column.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from dragoman.models.storage.groups import Grouped, pack_int4
from dragoman.tools.compress.scaling import Packing

Array = np.ndarray[Any, Any]

_SHARD_BYTES = 2 << 30
_NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".index.json")
_FOLDERS = ("additional_chat_templates",)


class CheckpointWriter:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._shard: dict[str, Array] = {}
        self._shard_bytes = 0
        self._shards: list[list[str]] = []
        self._total_bytes = 0

    def add(self, name: str, tensor: Array) -> None:
        """Write a tensor, now or together with later ones."""
        if self._shard and self._shard_bytes + tensor.nbytes > _SHARD_BYTES:
            self._write_shard()
        self._shard[name] = np.ascontiguousarray(tensor).reshape(tensor.shape)
        self._shard_bytes += tensor.nbytes

    def finish(self, config: dict[str, Any], source: Path) -> None:
        self._write_shard()
        self._name_shards()
        for path in source.iterdir():
            target = self._directory / path.name
            if path.is_file() and not path.name.endswith(_NOT_COPIED) and path.name != "config.json":
                shutil.copyfile(path, target)
            elif path.is_dir() and path.name in _FOLDERS:
                shutil.copytree(path, target)
        (self._directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def _write_shard(self) -> None:
        if self._shard:
            save_file(self._shard, self._directory / _shard_name(len(self._shards)), metadata={"format": "pt"})
            self._shards.append(list(self._shard))
            self._total_bytes += self._shard_bytes
        self._shard, self._shard_bytes = {}, 0

    def _name_shards(self) -> None:
        count = len(self._shards)
        if count == 1:
            (self._directory / _shard_name(0)).rename(self._directory / "model.safetensors")
            return
        weight_map = {}
        for number, names in enumerate(self._shards):
            name = f"model-{number + 1:05}-of-{count:05}.safetensors"
            (self._directory / _shard_name(number)).rename(self._directory / name)
            weight_map.update(dict.fromkeys(names, name))
        index = {"metadata": {"total_size": self._total_bytes}, "weight_map": weight_map}
        (self._directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")


def _shard_name(number: int) -> str:
    return f"shard-{number}.safetensors"


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A directory next to `path` that is renamed at the end of the block, or removed after an error. Raises: OSError."""
    if path.exists() or path.is_symlink():
        raise FileExistsError(f"{path} exists")
    beside = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        yield beside
        mask = _umask()
        beside.chmod(0o777 & ~mask)
        for file in beside.glob("*.safetensors"):  # the library makes them readable for their owner only
            file.chmod(0o666 & ~mask)
        beside.rename(path)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


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
