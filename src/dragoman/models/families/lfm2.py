"""LFM2: most layers mix tokens by a short gated convolution, a few by attention. Source: Liquid AI's LFM2 releases."""

from __future__ import annotations

from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.mlp import Routing, route
from dragoman.models.blocks.nodes import multiply, split
from dragoman.models.blocks.recurrence import convolve
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config, ModelError
from dragoman.models.facts import ConvolutionFacts, ExpertFacts, MlpFacts, ModelFacts, RoutingRule
from dragoman.models.families.experts import WithExperts, active_count
from dragoman.models.families.llama import Alternating, LayerNorms
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights

_LAYER_TYPES = ("full_attention", "conv")
# Keys about the first values of training, or that repeat other keys.
_UNUSED_KEYS = (
    "block_dim",
    "block_mlp_init_scale",
    "block_norm_eps",
    "block_out_init_scale",
    "block_use_xavier_init",
    "conv_dim",
    "conv_dim_out",
    "conv_use_xavier_init",
    "num_heads",
    "theta",
)


class Lfm2(Alternating):
    """LFM2 and LFM2.5 of 350M to 2.6B."""

    epsilon = ("norm_eps", 1e-5)
    layer_norms = LayerNorms("operator_norm", "ffn_norm")
    final_norm = "embedding_norm"
    output_name = "out_proj"
    mlp_name = "feed_forward"
    mlp_names = ("w1", "w3", "w2")
    head_norms = "each"
    head_norm_names = ("q_layernorm", "k_layernorm")
    is_tied = True

    def __init__(self, config: Config) -> None:
        config.skip(*_UNUSED_KEYS)
        config.expect(block_use_swiglu=True, use_pos_enc=True)
        if "rope_theta" not in config and "rope_parameters" not in config:
            raise ModelError("config.json has no rope_theta, allowed: a number")
        self.has_convolution_bias = config.flag("conv_bias")
        super().__init__(config)
        self.is_tied = config.flag("tie_embedding", self.is_tied)

    def read_facts(self, config: Config) -> ModelFacts:
        self.attends = _attending_layers(config)
        self.refuse_no_attention()
        self.other = ConvolutionFacts(config.count("hidden_size"), config.count("conv_L_cache", 3, least=2))
        return super().read_facts(config)

    def mlp_facts(self, config: Config, index: int) -> MlpFacts | ExpertFacts:
        return MlpFacts(_inner_size(config), "silu")

    def mix_otherwise(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """Convolved between two gates, all made of x."""
        weights = weights.at("conv")
        facts, bias = self.facts.convolution_layers[layer.index], self.has_convolution_bias
        size = facts.width
        gate_in, gate_out, inner = split(linear(x, weights.at("in_proj"), 3 * size, bias=bias), [size] * 3)
        convolved = convolve(multiply(gate_in, inner), weights.at("conv"), layer, bias=bias)
        gated = multiply(layer.keep(gate_out), layer.keep(convolved))
        return linear(gated, weights.at("out_proj"), self.facts.hidden_size, bias=bias)


def _attending_layers(config: Config) -> tuple[bool, ...]:
    num_layers = config.count("num_hidden_layers")
    indices = config.value("full_attn_idxs", list(range(num_layers)))
    types = config.choices("layer_types", _LAYER_TYPES, num_layers)
    if types is not None:
        return tuple(kind == "full_attention" for kind in types)
    if isinstance(indices, list):
        return tuple(index in indices for index in range(num_layers))
    raise config.error("full_attn_idxs", "a list of numbers of layers")


def _inner_size(config: Config) -> int:
    """The width of the MLPs, which checkpoints give before it is adjusted."""
    size = config.count("block_ff_dim", config.count("intermediate_size", 12_288))
    factor, multiple = config.number("block_ffn_dim_multiplier", 1.0), config.count("block_multiple_of", 256)
    if not config.flag("block_auto_adjust_ff_dim", True):
        return size
    return -(-int(factor * int(2 * size / 3)) // multiple) * multiple


class Lfm2Experts(Lfm2, WithExperts):
    """LFM2 8B-A1B, 24B-A2B."""

    def __init__(self, config: Config) -> None:
        self.has_choice_bias = config.flag("use_expert_bias", True)
        config.assume(tie_embedding=config.flag("tie_word_embeddings", True))
        super().__init__(config)

    def mlp_facts(self, config: Config, index: int) -> MlpFacts | ExpertFacts:
        return WithExperts.mlp_facts(self, config, index)

    def expert_facts(self, config: Config, index: int) -> ExpertFacts | None:
        num_experts, inner_size = config.count("num_experts"), config.count("moe_intermediate_size")
        active = active_count(config, "num_experts_per_tok", num_experts)
        is_normalized = config.flag("norm_topk_prob", True)
        scale = config.number("routed_scaling_factor", 1.0)
        if index < config.count("num_dense_layers", 2, least=0):
            return None
        routing = RoutingRule("sigmoid", is_normalized, scale=scale)
        return ExpertFacts(num_experts, active, inner_size, "silu", routing)

    def route(self, x: Node, weights: Weights, facts: ExpertFacts) -> Routing:
        bias = weights.vector(facts.num_experts, "expert_bias") if self.has_choice_bias else None
        return route(x, weights.at(self.router_name), facts, choice_bias=bias)
