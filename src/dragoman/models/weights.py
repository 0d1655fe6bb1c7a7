"""Reads the tensors of a safetensors checkpoint, one file or shards, without loading what is not asked for.

Does: find the files, map them, hand out numpy views by name. Does not: convert or quantise.
Called by the graph builders, once per start. bfloat16 appears as ml_dtypes.bfloat16.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ml_dtypes  # noqa: F401  (registers bfloat16 with numpy, which safetensors then finds by name)
import numpy as np
from safetensors import SafetensorError, safe_open

from dragoman.models.config import ModelError
from dragoman.models.read_ahead import read_ahead


class Checkpoint:
    """The tensors of one model directory by their Hugging Face names. A context manager: views die with it."""

    def __init__(self, model_dir: Path) -> None:
        self._model_dir = model_dir
        self._stack = ExitStack()
        self._file_of: dict[str, Any] = {}

    def __enter__(self) -> Self:
        paths = weight_files(self._model_dir)
        read_ahead(paths)
        for path in paths:
            try:
                opened = self._stack.enter_context(safe_open(path, framework="np"))
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path} is not a readable safetensors file: {error}") from error
            self._file_of.update(dict.fromkeys(opened.keys(), opened))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file_of.clear()
        self._stack.close()

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def tensor(self, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """The tensor `name`. Raises: ModelError if it is missing or its shape is not `shape`."""
        if name not in self._file_of:
            raise ModelError(f"{self._model_dir}: the checkpoint has no tensor {name!r}")
        tensor: np.ndarray[Any, Any] = self._file_of[name].get_tensor(name)
        if tensor.shape != shape:
            raise ModelError(f"tensor {name!r} has shape {list(tensor.shape)}, config.json implies {list(shape)}")
        return tensor


def weight_files(model_dir: Path) -> list[Path]:
    """The safetensors files of a model directory: the index's shards, or the single file.

    Raises: ModelError if there are none, or the index names a file that is missing.
    """
    index = model_dir / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        missing = [name for name in names if not (model_dir / name).exists()]
        if missing:
            raise ModelError(f"{index} names {missing[0]!r}, which does not exist")
        return [model_dir / name for name in names]
    files = sorted(model_dir.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{model_dir} holds no *.safetensors file")
    return files
