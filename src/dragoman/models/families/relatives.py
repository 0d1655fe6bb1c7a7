"""Families that differ from Llama in a line or two; and ERNIE 4.5 with experts, beside some that every token takes."""

from __future__ import annotations

from dataclasses import replace

from dragoman.models.blocks.experts import Routing, route
from dragoman.models.config import Config
from dragoman.models.facts import ExpertFacts, RoutingRule
from dragoman.models.families.experts import WithExperts, read_experts
from dragoman.models.families.llama import Llama
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class SeedOss(Llama):
    """Seed-OSS: the output's bias has its own switch."""

    architectures = ("SeedOssForCausalLM",)
    qkv_bias = ("attention_bias", True)
    output_bias = ("attention_out_bias", False)


class Ernie45(Llama):
    """ERNIE 4.5, dense: adjacent rotary pairs, one switch for all biases."""

    architectures = ("Ernie4_5ForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)
    has_interleaved_pairs = True
    qkv_bias = output_bias = ("use_bias", False)
    is_tied = True

    def __init__(self, config: Config) -> None:
        config.expect(compression_ratio=1.0)
        super().__init__(config)
        self.has_mlp_bias = config.flag("use_bias")


class ErnieExperts(WithExperts, Ernie45):
    """ERNIE 4.5 21B-A3B, 300B-A47B. Layers that guess further tokens are ignored."""

    architectures = ("Ernie4_5_MoeForCausalLM",)
    unread = (*WithExperts.unread, r"^model\.mtp_")

    def __init__(self, config: Config) -> None:
        config.expect(moe_gate="topk", moe_use_aux_free=True, use_bias=False, use_rmsnorm=True)
        config.skip("moe_capacity", "num_nextn_predict_layers")  # only for training
        super().__init__(config)

    def expert_facts(self, config: Config, index: int) -> ExpertFacts | None:
        first = config.count("moe_layer_start_index", 1, least=0)
        last = config.count("moe_layer_end_index", -1, least=-1)
        rule = RoutingRule(is_normalized=True, least_sum=config.number("moe_norm_min", 1e-12))
        facts = read_experts(config, rule, "moe_num_experts", active="moe_k")
        facts = replace(facts, shared_size=config.count("moe_num_shared_experts", 2, least=0) * facts.inner_size)
        is_dense = index < first or (last != -1 and index > last) or (index + 1) % config.count("moe_layer_interval", 1)
        return None if is_dense else facts

    def route(self, x: Node, weights: Weights, facts: ExpertFacts) -> Routing:
        stored = weights.at("moe_statics").stacked(0, 1)
        bias = stored.vector(facts.num_experts, "e_score_correction_bias")
        return route(x, weights.at(self.router_name), facts, choice_bias=bias)
