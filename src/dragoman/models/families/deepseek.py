"""DeepSeek V2 and V3: latent attention, and experts beside some that every token takes, in all but the first layers."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from dragoman.models.blocks.attention import attend
from dragoman.models.blocks.latent import LatentShape, latent_heads
from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts, ExpertFacts, RoutingRule
from dragoman.models.families.experts import ChosenWithBias, WithExperts, grouped_rule, read_experts
from dragoman.models.families.llama import Llama
from dragoman.models.rotary import RotaryReading, read_rotary, rotary_description, yarn_growth
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class LatentAttention(Llama):
    def __init__(self, config: Config) -> None:
        config.expect(attention_bias=False)
        config.skip("num_key_value_heads", "head_dim", "qk_head_dim")  # follow from others
        self.latent = LatentShape(
            num_heads=config.count("num_attention_heads"),
            turned_size=config.count("qk_rope_head_dim"),
            plain_size=config.count("qk_nope_head_dim"),
            value_size=config.count("v_head_dim"),
            rank=config.count("kv_lora_rank"),
            query_rank=config.count("q_lora_rank", 0, least=0),
            is_interleaved=config.flag("rope_interleave", True),
        )
        super().__init__(config)

    def read_rotary(self, config: Config) -> RotaryReading:
        return read_rotary(config, self.latent.turned_size)

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        shape, described = self.latent, rotary_description(config)
        weight = described.number("mscale_all_dim", 0.0)
        growth = yarn_growth(described.number("factor"), weight) if weight else 1.0
        scale = shape.head_size**-0.5 * growth**2
        return AttentionFacts(
            shape.num_heads, shape.num_heads, shape.head_size, shape.value_size, scale, rotary=self.rotary.rule
        )

    def attention(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        attended = attend(*latent_heads(x, weights, self.latent, self.norm_epsilon), layer)
        return linear(attended, weights.at("o_proj"), self.facts.hidden_size)


class RoutedExperts(WithExperts):
    """Dense MLPs in the first layers, then experts, some of which every token takes."""

    def __init__(self, config: Config) -> None:
        config.expect(moe_layer_freq=1)
        config.skip("aux_loss_alpha", "seq_aux", "ep_size")  # of training
        super().__init__(config)

    def expert_facts(self, config: Config, index: int) -> ExpertFacts | None:
        facts = read_experts(config, self.routing_rule(config), "n_routed_experts")
        facts = replace(facts, shared_size=config.count("n_shared_experts", 0, least=0) * facts.inner_size)
        kinds = config.choices("mlp_layer_types", ("dense", "sparse"), config.count("num_hidden_layers"))
        first = config.count("first_k_dense_replace", 0, least=0)
        return facts if (kinds[index] == "sparse" if kinds else index >= first) else None

    def routing_rule(self, config: Config) -> RoutingRule:
        config.expect(scoring_func="softmax", norm_topk_prob=False)
        scale = config.number("routed_scaling_factor", 1.0)
        if config.choice("topk_method", ("greedy", "group_limited_greedy"), "greedy") == "greedy":
            config.skip("n_group", "topk_group")
            return RoutingRule(scale=scale)
        return RoutingRule(
            scale=scale, num_groups=config.count("n_group"), num_active_groups=config.count("topk_group")
        )


class BiasedExperts(ChosenWithBias, RoutedExperts):
    """Experts chosen with a bias. Layers that guess further tokens are not read. `scoring`: the sigmoid's names."""

    scoring: ClassVar[tuple[str, ...]] = ("sigmoid",)

    def __init__(self, config: Config) -> None:
        first = config.count("num_hidden_layers")
        guessing = range(first, first + config.count("num_nextn_predict_layers", 0, least=0))
        self.unread = (*self.unread, *(rf"^model\.layers\.{index}\." for index in guessing))
        super().__init__(config)

    def routing_rule(self, config: Config) -> RoutingRule:
        config.choice("scoring_func", self.scoring, self.scoring[0])
        config.expect(topk_method="noaux_tc")
        return grouped_rule(config, "sigmoid")


class DeepseekV2(LatentAttention, RoutedExperts):
    """DeepSeek V2, V2-Lite and their Coders."""

    architectures = ("DeepseekV2ForCausalLM",)


class DeepseekV3(LatentAttention, BiasedExperts):
    """DeepSeek V3, R1, Moonlight, Kimi K2."""

    architectures = ("DeepseekV3ForCausalLM",)
