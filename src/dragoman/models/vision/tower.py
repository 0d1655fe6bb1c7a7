"""A tower that was loaded: pictures in, embeddings out.

Does: prepare a picture and run the compiled tower. Does not: queue, remember, or know prompts. Used by the engine's encoder,
on one thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov

from dragoman.models.facts import PictureFacts
from dragoman.models.sources.base import Array
from dragoman.models.vision.base import PictureProcessor
from dragoman.types import Detail, Picture

_SIDE = 64  # pixels of the picture to warm up with


class Tower:
    """A compiled tower, and what prepares its pictures. `mapping`: the file that holds its weights, None = it does."""

    def __init__(self, compiled: Any, facts: PictureFacts, processor: PictureProcessor, mapping: Any = None) -> None:
        self.facts = facts
        self.processor = processor
        self._compiled = compiled
        self._mapping = mapping
        self._request: Any = None

    def embed(self, picture: Picture, detail: Detail) -> Array:
        """The picture's embeddings. Shape: f32 [placeholders, hidden * levels]."""
        if self._request is None:  # its buffers grow with the first picture
            self._request = self._compiled.create_infer_request()
        for name, values in self.processor.inputs(picture, detail).items():
            self._request.set_tensor(name, ov.Tensor(np.ascontiguousarray(values)))
        self._request.infer()
        embeddings: Array = self._request.get_output_tensor(0).data
        return embeddings.astype(np.float32)  # a copy: the runtime's buffer is written again

    def warm_up(self) -> None:
        """Embed a small grey picture: the plugin chooses kernels and packs weights with the first."""
        self.embed(Picture(_SIDE, _SIDE, bytes([128]) * (3 * _SIDE * _SIDE), ""), "low")

    def grid(self, picture: Picture, detail: Detail) -> tuple[int, int]:
        """Rows and columns of its embeddings, (0, 0) where nobody asks."""
        return self.processor.layout(picture.width, picture.height, detail).grid

    def close(self) -> None:
        """Release the runtime's memory; the tower is unusable afterwards."""
        self._request = self._compiled = self._mapping = None
