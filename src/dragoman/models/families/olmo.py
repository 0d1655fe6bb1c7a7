"""OLMo: the first is Llama whose norms have no weights; 2 and 3 norm what comes out of attention and MLP, not what goes in,
and queries and keys as a whole.
"""

from __future__ import annotations

from dataclasses import replace

from dragoman.models.blocks.attention import attend, queries_keys_values
from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.nodes import clamped
from dragoman.models.blocks.norms import layer_norm
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts
from dragoman.models.families.head_norms import NormsWhole
from dragoman.models.families.llama import LayerNorms, Llama, head_size
from dragoman.models.families.windows import all_but_every, read_slides
from dragoman.models.rotary import RotaryReading, read_two_rotaries
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights

NORMS_AFTER = LayerNorms("", "", "post_attention_layernorm", "post_feedforward_layernorm")


class Olmo(Llama):
    """OLMo 1 and 1.7, in the layout whose name ends in -hf."""

    architectures = ("OlmoForCausalLM",)
    epsilon = ("layer_norm_eps", 1e-5)

    def __init__(self, config: Config) -> None:
        self.clip = config.number("clip_qkv", 0.0)
        super().__init__(config)

    def norm(self, x: Node, weights: Weights) -> Node:
        """Of mean and variance."""
        return layer_norm(x, None, self.norm_epsilon)

    def attention(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """With queries, keys and values cut off, if config.json says where."""
        facts = layer.attention
        parts = queries_keys_values(x, self.projections(weights, facts), facts, bias=self.has_qkv_bias)
        q, k, v = (clamped(part, self.clip) for part in parts)
        attended = attend(*self.heads(q, k, weights, facts), v, layer)
        return linear(attended, weights.at(self.output_name), self.facts.hidden_size, bias=self.has_output_bias)


class Olmo2(NormsWhole):
    """OLMo 2."""

    architectures = ("Olmo2ForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)
    layer_norms = NORMS_AFTER


class Olmo3(Olmo2):
    """OLMo 3: three of four layers have a window, and rotary positions without the others' scaling."""

    architectures = ("Olmo3ForCausalLM",)

    def read_rotary(self, config: Config) -> RotaryReading:
        """Of layers that see everything; `self.local_rotary` of the others."""
        full, self.local_rotary = read_two_rotaries(config, head_size(config), "rope_theta")
        return full

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        """Every fourth layer sees everything."""
        return read_slides(config, all_but_every(4))

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        """With the rule of the layer's kind."""
        facts = super().attention_facts(config, index)
        return replace(facts, rotary=self.local_rotary.rule) if self.slides[index] else facts
