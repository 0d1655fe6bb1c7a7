"""Nemotron H: each layer is one of a scan, attention without positions, or an MLP. Source: arXiv:2504.03624."""

from __future__ import annotations

from dataclasses import replace

from dragoman.models.blocks.attention import attend, queries_keys_values
from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.mlp import ACTIVATIONS, plain_mlp
from dragoman.models.blocks.nodes import add, split_heads
from dragoman.models.blocks.norms import rms_norm
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config, ModelError
from dragoman.models.facts import NO_MLP, AttentionFacts, LayerFacts, MlpFacts, ModelFacts
from dragoman.models.families.base import Family, Layout
from dragoman.models.families.llama import head_counts, head_size
from dragoman.models.families.scans import ScanKeys, read_scan, scanned
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights

_KEYS = ScanKeys(
    "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel", "expand", "use_conv_bias",
    "mamba_proj_bias", "use_bias", "chunk_size",
)  # fmt: skip
_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_SCANS, _ATTENTION = ("mamba", "linear_attention"), ("attention", "full_attention")
# About experts, which these models do not have, guesses, and the first values of training.
_UNUSED_KEYS = """
    n_routed_experts n_shared_experts moe_intermediate_size moe_shared_expert_intermediate_size moe_latent_size
    moe_shared_expert_overlap num_experts_per_tok routed_scaling_factor n_group topk_group norm_topk_prob
    num_nextn_predict_layers mtp_layers_block_type mtp_hybrid_override_pattern output_router_logits
    residual_in_fp32 rescale_prenorm_residual time_step_max time_step_floor num_logits_to_keep use_mamba_kernels
    mamba_ssm_cache_dtype mamba_dt_init_floor mamba_dt_max mamba_dt_min mamba_dt_limit mamba_expand mamba_d_conv
    is_mamba2 attention_head_dim num_hidden_layers
"""


class NemotronH(Family):
    """Nemotron H 4B to 56B, Nemotron Nano 2 of 9B and 12B."""

    architectures = ("NemotronHForCausalLM",)
    layouts = (Layout("backbone", "lm_head"), Layout("model", "lm_head"))
    table = "embeddings"
    unread = (r"^mtp\.",)

    def __init__(self, config: Config) -> None:
        config.skip(*_UNUSED_KEYS.split())
        config.expect(sliding_window=None)
        self.norm_epsilon = config.positive("layer_norm_epsilon", config.positive("rms_norm_eps", 1e-5))
        self.is_tied = config.flag("tie_word_embeddings", self.is_tied)
        self.has_mlp_bias, self.has_attention_bias = config.flag("mlp_bias"), config.flag("attention_bias")
        scan = read_scan(
            config,
            self.norm_epsilon,
            _KEYS,
            inner_width=config.count("mamba_num_heads") * config.count("mamba_head_dim", 64),
            activation="mamba_hidden_act",
        )
        limits = (
            config.number("time_step_min", 0.001),
            float("inf"),
        )  # which transformers has in place of what is said
        self.scan = replace(scan, facts=replace(scan.facts, step_limits=limits))
        self.facts = ModelFacts(
            architecture=self.architectures[0],
            vocab_size=config.count("vocab_size"),
            hidden_size=config.count("hidden_size"),
            max_position=config.count("max_position_embeddings"),
            layers=self._layers(config),
        )

    def _layers(self, config: Config) -> tuple[LayerFacts, ...]:
        num_heads, num_kv_heads = head_counts(config)
        size = head_size(config)
        attention = AttentionFacts(num_heads, num_kv_heads, size, size, size**-0.5)
        mlp = MlpFacts(config.count("intermediate_size"), config.choice("mlp_hidden_act", ACTIVATIONS, "relu2"))
        layers = []
        for kind in _kinds(config):
            if kind in _SCANS:
                layers.append(LayerFacts(self.scan.facts, NO_MLP))
            elif kind in _ATTENTION:
                layers.append(LayerFacts(attention, NO_MLP))
            else:
                layers.append(LayerFacts(None, mlp))
        return tuple(layers)

    def layer(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """See `Family`."""
        facts, mixer = self.facts.layers[layer.index], weights.at("mixer")
        normed, kept = rms_norm(x, weights.at("norm"), self.norm_epsilon), layer.keep(x)
        if facts.mixer == self.scan.facts:
            return add(kept, scanned(normed, mixer, layer, self.scan))
        if facts.attention is not None:
            return add(kept, self._attention(normed, mixer, layer))
        up, down, mlp = mixer.at("up_proj"), mixer.at("down_proj"), facts.mlp
        assert isinstance(mlp, MlpFacts)
        inside = layer.keep(normed)
        return add(kept, plain_mlp(inside, up, down, mlp.inner_size, mlp.activation, bias=self.has_mlp_bias))

    def _attention(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        facts, bias = layer.attention, self.has_attention_bias
        projections = (weights.at("q_proj"), weights.at("k_proj"), weights.at("v_proj"))
        q, k, v = queries_keys_values(x, projections, facts, bias=bias)
        attended = attend(split_heads(q, facts.num_heads), split_heads(k, facts.num_kv_heads), v, layer)
        return linear(attended, weights.at("o_proj"), self.facts.hidden_size, bias=bias)

    def last_norm(self, x: Node, body: Weights) -> Node:
        """See `Family`."""
        return rms_norm(x, body.at("norm_f"), self.norm_epsilon)


def _kinds(config: Config) -> list[str]:
    """The kind of each layer. Raises: ModelError."""
    pattern, listed = config.value("hybrid_override_pattern"), config.value("layers_block_type")
    if listed is None:
        listed = config.value("layer_types")
    if listed is None and isinstance(pattern, str) and set(pattern) <= set(_LETTERS):
        listed = [_LETTERS[letter] for letter in pattern]
    allowed = (*_SCANS, *_ATTENTION, "mlp")
    if isinstance(listed, list) and "moe" in listed:
        raise ModelError("architecture NemotronHForCausalLM with experts: they have no gates, which is not supported")
    if not isinstance(listed, list) or not listed or not all(kind in allowed for kind in listed):
        raise config.error("layers_block_type", f"a list of: {', '.join(allowed)}")
    return listed
