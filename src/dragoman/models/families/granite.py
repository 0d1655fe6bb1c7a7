"""Granite 3: Llama with multipliers on embeddings, scores, residuals and logits."""

from __future__ import annotations

from dataclasses import replace

from dragoman.models.blocks.nodes import add, scaled
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts
from dragoman.models.families.llama import Llama
from dragoman.models.storage.constants import Node


class Granite(Llama):
    """Granite 3."""

    architectures = ("GraniteForCausalLM",)

    def __init__(self, config: Config) -> None:
        self.embedding_factor = config.number("embedding_multiplier", 1.0)
        self.residual_scale = config.number("residual_multiplier", 1.0)
        self.logits_factor = 1.0 / config.positive("logits_scaling", 1.0)
        super().__init__(config)

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        return replace(super().attention_facts(config, index), scale=config.number("attention_multiplier", 1.0))

    def residual(self, x: Node, change: Node) -> Node:
        return add(x, scaled(change, self.residual_scale))
