"""OLMo 2 and 3: Llama that norms what comes out of attention and MLP, not what goes in, and queries and keys as a whole."""

from __future__ import annotations

from dataclasses import replace

from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts
from dragoman.models.families.llama import LayerNorms, Llama, head_size
from dragoman.models.families.windows import all_but_every, read_slides
from dragoman.models.rotary import RotaryReading, read_two_rotaries
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights

NORMS_AFTER = LayerNorms("", "", "post_attention_layernorm", "post_feedforward_layernorm")


class Olmo2(Llama):
    """OLMo 2."""

    architectures = ("Olmo2ForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)
    layer_norms = NORMS_AFTER

    def heads(self, q: Node, k: Node, weights: Weights, facts: AttentionFacts) -> tuple[Node, Node]:
        """Normed over all heads together."""
        q, k = self.norm(q, weights.at("q_norm")), self.norm(k, weights.at("k_norm"))
        return super().heads(q, k, weights, facts)


class Olmo3(Olmo2):
    """OLMo 3: three of four layers see a window, and turn without the scaling of the others."""

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
