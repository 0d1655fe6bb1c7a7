"""OLMo: the first is Llama whose norms have no weights; 2 and 3 norm the outputs of attention and MLP, queries and keys.

OLMoE is Llama with experts, that norms queries and keys as a whole.
"""

from __future__ import annotations

from dragoman.models.blocks.nodes import clamped
from dragoman.models.blocks.norms import layer_norm
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import ExpertFacts, RoutingRule
from dragoman.models.families.experts import WithExperts, read_experts
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
        return layer_norm(x, None, self.norm_epsilon)

    def queries_keys_values(self, x: Node, weights: Weights, layer: LayerInputs) -> list[Node]:
        return [clamped(part, self.clip) for part in super().queries_keys_values(x, weights, layer)]


class Olmo2(Llama):
    """OLMo 2."""

    architectures = ("Olmo2ForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)
    head_norms = "all"
    layer_norms = NORMS_AFTER


class Olmo3(Olmo2):
    """OLMo 3: three of four layers have a window, and rotary positions without the others' scaling."""

    architectures = ("Olmo3ForCausalLM",)

    def read_rotary(self, config: Config) -> RotaryReading:
        full, self.local_rotary = read_two_rotaries(config, head_size(config), "rope_theta")
        return full

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        return read_slides(config, all_but_every(4))


class OlmoExperts(WithExperts):
    """OLMoE 1B-7B."""

    architectures = ("OlmoeForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)
    head_norms = "all"

    def __init__(self, config: Config) -> None:
        config.expect(clip_qkv=None)
        super().__init__(config)

    def expert_facts(self, config: Config, index: int) -> ExpertFacts:
        rule = RoutingRule(is_normalized=config.flag("norm_topk_prob"))
        return read_experts(config, rule, size="intermediate_size")
