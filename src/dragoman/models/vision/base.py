"""The base of a family's vision part: the processor of pictures, and the tower that embeds them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol

import openvino as ov

from dragoman.models.config import Config
from dragoman.models.facts import PictureFacts
from dragoman.models.sources.base import Array
from dragoman.models.storage.constants import Node
from dragoman.models.vision.blocks import parts_of
from dragoman.models.weights import Weights
from dragoman.types import Detail, Picture, PictureLayout

__all__ = ["EMBEDDINGS", "PictureLayout", "PictureProcessor", "TowerGraph", "VisionFamily"]

EMBEDDINGS = "embeddings"


class PictureProcessor(Protocol):
    """Prepares pictures for one checkpoint's tower as the reference processor does. Immutable; used on any thread."""

    @property
    def marker(self) -> str:
        """The marker that a chat template writes for a picture; `{}` in it stands for the picture's number, from 1."""
        ...

    def layout(self, width: int, height: int, detail: Detail) -> PictureLayout:
        """Quick. Raises: ValueError, one line, if the tower cannot take a picture of that size."""
        ...

    def inputs(self, picture: Picture, detail: Detail) -> dict[str, Array]:
        """The tower's inputs by name; takes milliseconds to seconds."""
        ...


class TowerGraph(NamedTuple):
    """The end of a tower's graph, f32 [placeholders, hidden * levels], and its inputs, which are a processor's."""

    embeddings: Node
    inputs: list[Any]


class VisionFamily(ABC):
    """`facts`: how its decoder takes pictures in. `prefixes`: patterns of its own tensors."""

    facts: PictureFacts
    prefixes: tuple[str, ...] = (r"(model\.)?vision_tower\.", r"(model\.)?multi_modal_projector\.")

    @abstractmethod
    def __init__(self, config: Config, hidden_size: int) -> None:
        """`config`: the whole config.json; `hidden_size`: the decoder's. Raises: ModelError, as the other two."""

    @abstractmethod
    def processor(self, described: Config) -> PictureProcessor: ...

    @abstractmethod
    def tower(self, weights: Weights) -> TowerGraph: ...

    def build(self, weights: Weights) -> list[ov.Model]:
        """The tower's parts, half a layer each, complete when the storage's parts have finished. Raises: ModelError."""
        embeddings, inputs = self.tower(weights)
        embeddings.set_names({EMBEDDINGS})
        graph = ov.Model([embeddings], inputs, "tower")
        ours = "|".join(self.prefixes)
        weights.refuse_unread([rf"^(?!{ours})"])
        return parts_of(graph)
