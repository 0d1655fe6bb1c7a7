"""The base of all families, which read config.json and put layers together from blocks. Names none of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar, NamedTuple

import openvino as ov

from dragoman.models.architectures import names_of
from dragoman.models.blocks.fusing import fuse
from dragoman.models.blocks.linear import embedding, logits
from dragoman.models.blocks.nodes import capped, scaled
from dragoman.models.blocks.norms import layer_norm, rms_norm
from dragoman.models.blocks.step import LayerInputs, StepInputs
from dragoman.models.config import Config, ModelError
from dragoman.models.facts import LayerFacts, ModelFacts
from dragoman.models.storage.constants import Node
from dragoman.models.vision.base import VisionFamily
from dragoman.models.weights import Weights


class Layout(NamedTuple):
    body: str
    head: str


class Family(ABC):
    """One model of a family, made from its config.json. A family's docstring begins with its text in docs/models.md.

    `layouts`: the first one whose table of embeddings is there is the checkpoint's. `packings`: quant_methods of
    this family alone. `table`, `layers`, `final_norm`: names below the body. `large_table`: that of another table.
    `unread`: patterns of needless tensors. `has_layer_norms`, `has_norm_bias`, `norm_offset`: LayerNorm, or RMSNorm;
    and what is added to its weights. `logits_factor`: before the head's matrix.
    """

    layouts: tuple[Layout, ...] = (
        Layout("model", "lm_head"),
        Layout("model.language_model", "lm_head"),  # a text model cut out of one that sees
    )
    packings: ClassVar[tuple[str, ...]] = ()
    table: ClassVar[str] = "embed_tokens"
    layers: ClassVar[str] = "layers"
    large_table: ClassVar[str] = ""
    final_norm: ClassVar[str] = "norm"
    has_layer_norms: ClassVar[bool] = False
    has_norm_bias: ClassVar[bool] = True
    norm_offset: ClassVar[float] = 0.0
    unread: tuple[str, ...] = (r"rotary_emb\.inv_freq$",)

    norm_epsilon: float
    embedding_factor: float = 1.0
    logits_factor: float = 1.0
    logits_cap: float = 0.0
    has_head_bias: bool = False

    facts: ModelFacts
    vision: VisionFamily | None = None

    @abstractmethod
    def __init__(self, config: Config) -> None: ...

    @classmethod
    def architectures(cls) -> tuple[str, ...]:
        """The names in config.json that mean this family; if none does, those of the one that it varies."""
        return next(names for names in map(names_of, cls.__mro__) if names)

    def see(self, vision: VisionFamily) -> None:
        """Take in pictures from now on, as that part embeds them. Raises: ModelError if token or levels do not fit."""
        if vision.facts.placeholder_id >= self.facts.vocab_size:
            raise ModelError(
                f"config.json: images replace token {vision.facts.placeholder_id}, "
                f"allowed: one of the vocabulary's {self.facts.vocab_size}"
            )
        if vision.facts.num_levels > len(self.facts.layers):  # the last layer does not keep all rows
            raise ModelError(
                f"config.json: pictures come in {vision.facts.num_levels} levels, allowed: at most the text's "
                f"{len(self.facts.layers)} layers"
            )
        self.vision = vision
        self.facts = replace(self.facts, pictures=vision.facts)

    def read_ends(
        self, config: Config, layers: Iterable[LayerFacts], max_position: int, long_context_from: int | None = None
    ) -> ModelFacts:
        sizes = config.count("vocab_size"), config.count("hidden_size")
        return ModelFacts(self.architectures()[0], *sizes, max_position, tuple(layers), long_context_from)

    @abstractmethod
    def layer(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """One layer. Shapes: x [T, 1, hidden] -> the same; of the last layer only the rows that it keeps."""

    def norm(self, x: Node, weights: Weights) -> Node:
        if self.has_layer_norms:
            return layer_norm(x, weights, self.norm_epsilon, bias=self.has_norm_bias, offset=self.norm_offset)
        return rms_norm(x, weights, self.norm_epsilon, offset=self.norm_offset)

    def last_norm(self, x: Node, body: Weights) -> Node:
        return self.norm(x, body.at(self.final_norm))

    def embed(self, body: Weights, step: StepInputs) -> Node:
        """Shape: [T, 1, hidden]."""
        x = embedding(step.token_ids, body.at(self.table), self.facts.vocab_size, self.facts.hidden_size)
        return scaled(x, self.embedding_factor)

    def begin(self, x: Node, body: Weights, step: StepInputs) -> Node:
        """The input of the first layer, made of the embeddings; families hand on here what further layers need of them."""
        return x

    def head(self, x: Node, weights: Weights) -> Node:
        """Logits. Shapes: [R, 1, hidden] -> [R, vocab]."""
        x = scaled(x, self.logits_factor)
        return capped(logits(x, weights, self.facts.vocab_size, bias=self.has_head_bias), self.logits_cap)

    def build(self, weights: Weights) -> ov.Model:
        """The graph; its inputs are those of `StepInputs`, its output logits f32 [R, vocab]. Raises: ModelError."""
        step = StepInputs(self.facts, self.cache_type, takes_back=self.takes_back)
        layout = self._layout(weights)
        head = self._head_weights(weights, layout)
        weights = weights.tying(head.name())
        body = weights.at(layout.body)
        x = self.begin(step.with_pictures(self.embed(body, step)), body, step)
        for index in range(len(self.facts.layers)):
            x = self.layer(x, body.at(f"{self.layers}.{index}"), LayerInputs(step, index))
            x = step.with_pictures(x, index + 1)
        result = self.head(self.last_norm(x, body), head)
        result.set_names({"logits"})
        weights.refuse_unread(self.unread)
        adapted = [] if weights.adapting is None else weights.adapting.parameters
        graph = ov.Model([result], [*step.parameters, *adapted], self.facts.architecture)
        fuse(graph, weights.storage)
        return graph

    def _layout(self, weights: Weights) -> Layout:
        return next(
            (layout for layout in self.layouts if f"{self.table}.weight" in weights.at(layout.body)), self.layouts[0]
        )

    def _head_weights(self, weights: Weights, layout: Layout) -> Weights:
        head = weights.at(layout.head)
        if not self.is_tied and ("weight" in head or not self.is_tied_without_head):
            return head
        head.skip("weight")
        return weights.at(layout.body).at(self.table)

    cache_type: str | None = None
    """The format of caches where the library of kernels attends; None = OpenVINO's attention has its own caches."""

    takes_back: bool = False
    """True if computed tokens may be taken back, see `StepInputs`."""

    is_tied: bool = False
    """True if the head's matrix is the table of embeddings, whatever else the checkpoint has."""
    is_tied_without_head: bool = False
    """True if it is that table where the checkpoint has no head: transformers 5 ties models that see as a whole."""
