"""OLMo and EXAONE 4. OLMo 1 is Llama whose norms have no weights; 2 and 3 norm what attention and MLP return, as EXAONE 4.

OLMoE is Llama with experts, that norms queries and keys as a whole. K-EXAONE has DeepSeek V3's experts, and norms before.
"""

from __future__ import annotations

from dragoman.models.blocks.norms import layer_norm
from dragoman.models.config import Config
from dragoman.models.facts import ExpertFacts, RoutingRule
from dragoman.models.families.deepseek import BiasedExperts
from dragoman.models.families.experts import WithExperts, read_experts
from dragoman.models.families.llama import LayerNorms, Llama, all_but_every, head_size, no_slides, read_slides
from dragoman.models.families.qwen import Qwen3
from dragoman.models.rotary import RotaryReading, read_two_rotaries
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights

NORMS_AFTER = LayerNorms("", "", "post_attention_layernorm", "post_feedforward_layernorm")


class Olmo(Llama):
    """OLMo 1 and 1.7, in the layout whose name ends in -hf."""

    epsilon = ("layer_norm_eps", 1e-5)

    def __init__(self, config: Config) -> None:
        self.clip = config.number("clip_qkv", 0.0)
        super().__init__(config)

    def norm(self, x: Node, weights: Weights) -> Node:
        return layer_norm(x, None, self.norm_epsilon)


class Olmo2(Llama):
    """OLMo 2."""

    epsilon = ("rms_norm_eps", 1e-5)
    head_norms = "all"
    layer_norms = NORMS_AFTER


class Olmo3(Olmo2):
    """OLMo 3: three of four layers have a window, and rotary positions without the others' scaling."""

    def read_rotary(self, config: Config) -> RotaryReading:
        full, self.local_rotary = read_two_rotaries(config, head_size(config), "rope_theta")
        return full

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        return read_slides(config, all_but_every(4))


class OlmoExperts(WithExperts):
    """OLMoE 1B-7B."""

    epsilon = ("rms_norm_eps", 1e-5)
    head_norms = "all"

    def __init__(self, config: Config) -> None:
        config.expect(clip_qkv=None)
        super().__init__(config)

    def expert_facts(self, config: Config, index: int) -> ExpertFacts:
        rule = RoutingRule(is_normalized=config.flag("norm_topk_prob"))
        return read_experts(config, rule, size="intermediate_size")


# Norms after attention and MLP and on each head's queries and keys; layers without a window may not rotate.
class Exaone4(Qwen3):
    """EXAONE 4.0 1.2B and 32B."""

    epsilon = ("rms_norm_eps", 1e-5)
    layer_norms = NORMS_AFTER
    qkv_bias = output_bias = False

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        self.has_windows = "sliding_window" in config
        if not self.has_windows:
            config.skip("sliding_window_pattern")
            return no_slides(config)
        pattern = 1 if "layer_types" in config else config.count("sliding_window_pattern", 4)
        return read_slides(config, all_but_every(pattern))

    def is_turned(self, index: int) -> bool:
        return self.slides[index] or not self.has_windows


class ExaoneExperts(BiasedExperts, Exaone4):
    """K-EXAONE 236B-A23B. Layers that guess further tokens are ignored."""

    layer_norms = LayerNorms()
    bias_name = "e_score_correction_bias"

    def __init__(self, config: Config) -> None:
        config.rename({"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"})
        config.rename({"first_last_k_dense_replace": "first_k_dense_replace"})
        config.assume(first_k_dense_replace=1, n_shared_experts=1, routed_scaling_factor=2.5)
        super().__init__(config)
        self.unread = (*self.unread, r"^mtp\.")
        found = [isinstance(layer.mlp, ExpertFacts) for layer in self.facts.layers]
        config.expect(is_moe_layer=found)
