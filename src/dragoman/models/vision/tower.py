"""Prepares a picture and runs a tower's compiled parts in order. Used by the engine's embedder, on one thread."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import openvino as ov

from dragoman.models.facts import PictureFacts
from dragoman.models.sources.base import Array
from dragoman.models.vision.base import EMBEDDINGS, PictureProcessor
from dragoman.types import Detail, Picture

_SIDE = 64  # pixels of the picture to warm up with


class Tower:
    def __init__(
        self, parts: Sequence[Any], mappings: Sequence[Any], facts: PictureFacts, processor: PictureProcessor
    ) -> None:
        self.facts = facts
        self.processor = processor
        self._parts = list(parts)
        self._mappings = list(mappings)
        self._requests: list[Any] = []

    def embed(self, picture: Picture, detail: Detail) -> Generator[None, None, Array]:
        """The picture's embeddings, f32 [placeholders, hidden * levels]. Yields before each part is computed."""
        if not self._requests:  # their buffers grow with the first picture
            self._requests = [part.create_infer_request() for part in self._parts]
        inputs = self.processor.inputs(picture, detail)
        values = {name: ov.Tensor(np.ascontiguousarray(array)) for name, array in inputs.items()}
        for part, request in zip(self._parts, self._requests, strict=True):
            yield
            for place in part.inputs:
                request.set_tensor(place, values[place.any_name])
            request.infer()
            values |= {place.any_name: request.get_tensor(place) for place in part.outputs}
        embeddings: Array = values[EMBEDDINGS].data
        return embeddings.astype(np.float32)  # a copy: the runtime's buffer is written again

    def warm_up(self) -> None:
        """Embed a small grey picture: the plugin chooses kernels and packs weights with the first."""
        for _ in self.embed(Picture(_SIDE, _SIDE, bytes([128]) * (3 * _SIDE * _SIDE), ""), "low"):
            pass

    def grid(self, picture: Picture, detail: Detail) -> tuple[int, int]:
        return self.processor.layout(picture.width, picture.height, detail).grid

    def close(self) -> None:
        for held in (self._requests, self._parts, self._mappings):
            held.clear()
