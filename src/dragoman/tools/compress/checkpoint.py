"""Writes a checkpoint's directory, which appears complete or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

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
