"""MiniMax M2: Mixtral that norms queries and keys as a whole, turns a part of each head and chooses experts with a bias."""

from __future__ import annotations

from dataclasses import replace

from dragoman.models.config import Config
from dragoman.models.facts import ExpertFacts, RoutingRule
from dragoman.models.families.experts import ChosenWithBias
from dragoman.models.families.llama import head_size
from dragoman.models.families.mistral import Mixtral
from dragoman.models.rotary import RotaryReading, read_rotary


class MiniMaxM2(ChosenWithBias, Mixtral):
    """MiniMax M2, M2.1 and M2.5. Layers that guess further tokens are ignored."""

    architectures = ("MiniMaxM2ForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-6)
    head_norms = "all"
    bias_name = "e_score_correction_bias"

    def __init__(self, config: Config) -> None:
        config.expect(qk_norm_type="per_layer", scoring_func="sigmoid", use_qk_norm=True, use_routing_bias=True)
        config.expect(attn_type_list=[1] * config.count("num_hidden_layers"), shared_intermediate_size=0)
        config.skip(
            "layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"
        )  # for other models of the family
        config.skip("mlp_intermediate_size", "shared_moe_mode", "mtp_transformer_layers", "num_mtp_modules", "use_mtp")
        self.unread = (*self.unread, r"\.mtp\b")
        super().__init__(config)

    def read_rotary(self, config: Config) -> RotaryReading:
        size = head_size(config)
        config.assume(rope_theta=5_000_000.0)
        return read_rotary(config, size, part=config.count("rotary_dim", size) / size)

    def expert_facts(self, config: Config, index: int) -> ExpertFacts:
        return replace(super().expert_facts(config, index), routing=RoutingRule("sigmoid", is_normalized=True))
