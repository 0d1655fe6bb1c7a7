"""Gemma 1, 2 and 3 (text): Llama with scaled embeddings, norms that add one to their weights, and gelu.

Gemma 2 also norms the outputs of attention and MLP, and caps scores and logits. Gemma 3 norms queries and keys instead.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import ClassVar

from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts, ExpertFacts, MlpFacts
from dragoman.models.families.llama import LayerNorms, Llama, head_size
from dragoman.models.families.windows import all_but_every, read_slides
from dragoman.models.rotary import RotaryReading, read_two_rotaries


class Gemma(Llama):
    """Gemma 1.

    `directions`: the values of `use_bidirectional_attention` with which texts are only read forwards.
    """

    architectures = ("GemmaForCausalLM",)
    directions: ClassVar[tuple[bool | str, ...]] = (False,)
    norm_offset = 1.0
    is_tied = True

    def __init__(self, config: Config) -> None:
        if config.value("use_bidirectional_attention", False) not in self.directions:
            raise config.error("use_bidirectional_attention", " or ".join(json.dumps(one) for one in self.directions))
        self.embedding_factor = config.count("hidden_size") ** 0.5
        super().__init__(config)

    def mlp_facts(self, config: Config, index: int) -> MlpFacts | ExpertFacts:
        """The first releases said "gelu" and meant its approximation."""
        named = config.choice("hidden_act", ACTIVATIONS, "gelu_pytorch_tanh")
        activation = config.choice("hidden_activation", ACTIVATIONS, named)
        return MlpFacts(config.count("intermediate_size"), "gelu_pytorch_tanh" if activation == "gelu" else activation)


class Gemma2(Gemma):
    """Gemma 2."""

    architectures = ("Gemma2ForCausalLM",)
    layer_norms = LayerNorms(
        before_mlp="pre_feedforward_layernorm",
        after_attention="post_attention_layernorm",
        after_mlp="post_feedforward_layernorm",
    )

    def __init__(self, config: Config) -> None:
        self.logits_cap = config.number("final_logit_softcapping", 0.0)
        super().__init__(config)

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        return read_slides(config, all_but_every(2))

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        scale = config.positive("query_pre_attn_scalar", 256.0) ** -0.5
        cap = config.number("attn_logit_softcapping", 0.0)
        return replace(super().attention_facts(config, index), scale=scale, softcap=cap)


class Gemma3(Gemma2):
    """Gemma 3, its text model."""

    architectures = ("Gemma3ForCausalLM",)
    head_norms = "each"

    def read_rotary(self, config: Config) -> RotaryReading:
        """The rule of layers that see everything; `self.local_rotary` is that of the others."""
        full, self.local_rotary = read_two_rotaries(config, head_size(config), "rope_local_base_freq")
        return full

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        pattern = config.count("sliding_window_pattern", config.count("_sliding_window_pattern", 6))
        return read_slides(config, all_but_every(pattern))
