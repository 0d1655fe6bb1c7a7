"""Decoders some of whose layers attend while others recur: Bamba, Jamba, Falcon H1, Zamba 2 and RecurrentGemma.

Sources: the Bamba release; arXiv:2403.19887 (Jamba); arXiv:2507.22448 (Falcon H1); arXiv:2411.15242 (Zamba 2);
arXiv:2404.07839 (RecurrentGemma).
"""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.attention import attend
from dragoman.models.blocks.linear import linear, linears
from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import add, multiply, reshape, scaled, split, split_heads
from dragoman.models.blocks.recurrence import convolve, gated_recurrence
from dragoman.models.blocks.step import LayerInputs, StepInputs
from dragoman.models.config import Config
from dragoman.models.facts import (
    NO_MLP,
    AttentionFacts,
    ConvolutionFacts,
    ExpertFacts,
    GatedRecurrenceFacts,
    LayerFacts,
    MlpFacts,
    ModelFacts,
    RoutingRule,
)
from dragoman.models.families.base import Family
from dragoman.models.families.experts import WithExperts, read_experts
from dragoman.models.families.llama import Alternating, LayerNorms, Llama, head_counts
from dragoman.models.families.scans import (
    ChannelScanKeys,
    ScanKeys,
    read_channel_scan,
    read_scan,
    scanned,
    scanned_by_channel,
)
from dragoman.models.rotary import read_rotary
from dragoman.models.storage.constants import Node, constant
from dragoman.models.weights import Weights


# Most layers scan, a few attend and turn half of each head.
class Bamba(Alternating):
    """Bamba 9B, 1 and 2."""

    epsilon = ("rms_norm_eps", 1e-5)
    layer_norms = LayerNorms("input_layernorm", "pre_ff_layernorm")
    final_norm = "final_layernorm"
    mlp_name = "feed_forward"
    rotary_part = 0.5

    def __init__(self, config: Config) -> None:
        config.skip("num_logits_to_keep", "z_loss_coefficient", "attn_rotary_emb", "layers_block_type", "layer_types")
        super().__init__(config)

    def read_facts(self, config: Config) -> ModelFacts:
        num_layers = config.count("num_hidden_layers")
        indices = config.value("attn_layer_indices", [])
        if not isinstance(indices, list) or any(index not in range(num_layers) for index in indices):
            raise config.error("attn_layer_indices", f"a list of layers, 0 to {num_layers - 1}")
        self.attends = tuple(index in indices for index in range(num_layers))
        self.scan = read_scan(config, self.norm_epsilon, ScanKeys())
        self.other = self.scan.facts
        return super().read_facts(config)

    def mix_otherwise(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        return scanned(x, weights.at("mamba"), layer, self.scan)


# Most layers scan each channel, some attend without positions; dense or with experts.
class Jamba(Alternating, WithExperts):
    """Jamba 1.5, 1.6, 1.7 and Reasoning 3B."""

    layer_norms = LayerNorms("input_layernorm", "pre_ff_layernorm")
    final_norm = "final_layernorm"
    mlp_name = "feed_forward"
    router_name = "router"

    def __init__(self, config: Config) -> None:
        config.skip("use_mamba_kernels", "use_mambapy", "use_associative_scan", "num_logits_to_keep", "sliding_window")
        config.skip("calc_logits_for_entire_prompt", "layer_types", "layers_block_type")
        config.expect(mamba_inner_layernorms=True)
        config.assume(max_position_embeddings=262_144)
        super().__init__(config)

    def read_facts(self, config: Config) -> ModelFacts:
        period, offset = config.count("attn_layer_period", 8), config.count("attn_layer_offset", 4, least=0)
        self.attends = tuple(index % period == offset for index in range(config.count("num_hidden_layers")))
        self.scan = read_channel_scan(config, ChannelScanKeys())
        self.other = self.scan.facts
        return super().read_facts(config)

    def is_turned(self, index: int) -> bool:
        return False

    def expert_facts(self, config: Config, index: int) -> ExpertFacts | None:
        period, offset = config.count("expert_layer_period", 2), config.count("expert_layer_offset", 1, least=0)
        if config.count("num_experts", 16) == 1:
            config.skip("num_experts_per_tok")
            return None
        facts = read_experts(config, RoutingRule(), size="intermediate_size", default=16)
        return facts if index % period == offset else None

    def mix_otherwise(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        mamba = weights.at("mamba")
        return scanned_by_channel(
            x, mamba, layer, self.scan, lambda part, name: self.norm(part, mamba.at(f"{name}_layernorm"))
        )


# Falcon H1: each layer attends and scans at once; config.json multiplies much of it.
_KEYS = ScanKeys(out_bias="projectors_bias")


class FalconH1(Llama):
    """Falcon H1 of 0.5B to 34B."""

    epsilon = ("rms_norm_eps", 1e-5)
    layer_norms = LayerNorms("input_layernorm", "pre_ff_layernorm")
    final_norm = "final_layernorm"
    mlp_name = "feed_forward"

    def __init__(self, config: Config) -> None:
        config.skip("num_logits_to_keep", "mamba_use_mlp", "mlp_expansion_factor")
        config.skip("time_step_min", "time_step_max", "time_step_floor", "attn_layer_indices")
        self.in_factor, self.out_factor = (config.number(f"attention_{side}_multiplier", 1.0) for side in ("in", "out"))
        self.scan_in_factor, self.scan_out_factor = (
            config.number(f"ssm_{side}_multiplier", 1.0) for side in ("in", "out")
        )
        self.embedding_factor = config.number("embedding_multiplier", 1.0)
        self.logits_factor = config.number("lm_head_multiplier", 1.0)
        self.scan_factors = _numbers(config, "ssm_multipliers", 5)
        self.gate_factor, self.down_factor = _numbers(config, "mlp_multipliers", 2)
        super().__init__(config)

    def read_facts(self, config: Config) -> ModelFacts:
        inner_width = config.count("mamba_d_ssm", 0, least=0) or None
        scan = read_scan(config, self.norm_epsilon, _KEYS, inner_width=inner_width)
        has_norm, norms_first = config.flag("mamba_rms_norm"), config.flag("mamba_norm_before_gate", True)
        self.scan = replace(scan, has_norm=has_norm, norms_first=norms_first)
        facts = super().read_facts(config)
        layers = tuple(LayerFacts(layer.mixer, layer.mlp, scan.facts) for layer in facts.layers)
        return replace(facts, layers=layers)

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        """Keys are multiplied, as scores would be."""
        facts = super().attention_facts(config, index)
        return replace(facts, scale=facts.scale * config.number("key_multiplier", 1.0))

    def mix(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        scanned_x = scanned(scaled(x, self.scan_in_factor), weights.at("mamba"), layer, self.scan, self.scan_factors)
        attended = super().mix(scaled(x, self.in_factor), weights, layer)
        return add(scaled(scanned_x, self.scan_out_factor), scaled(attended, self.out_factor))

    def mlp(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        facts = self.facts.layers[layer.index].mlp
        assert isinstance(facts, MlpFacts)
        if self.gate_factor == 1.0:
            return scaled(super().mlp(x, weights, layer), self.down_factor)
        gate, up, down = self.gate_up_down(weights, facts.inner_size)
        bias, is_fused = self.has_mlp_bias, gate.storage.format.fuses_mlp
        gated, raised = linears(x, [gate, up], [facts.inner_size] * 2, bias=bias, is_fused=is_fused)
        inner = multiply(ACTIVATIONS[facts.activation](scaled(gated, self.gate_factor)), raised)
        return scaled(linear(inner, down, self.facts.hidden_size, bias=bias), self.down_factor)


def _numbers(config: Config, key: str, length: int) -> tuple[float, ...]:
    return (1.0,) * length if config.value(key) is None else config.numbers(key, length)


# Zamba 2: every layer scans; before some of them one of a few transformer blocks reads the embeddings once more. A block
# serves many layers, each of which has its own adapters of low rank for it.
_ZAMBA_KEYS = ScanKeys(
    "n_mamba_heads", "mamba_headdim", "mamba_ngroups", "mamba_d_state", "mamba_d_conv", "mamba_expand", "use_conv_bias",
    "add_bias_linear", "add_bias_linear", "chunk_size",
)  # fmt: skip
_SCAN_EPSILON = 1e-5  # independent of other norms
# Keys that repeat others, or are about other libraries, or the first values of training.
_UNUSED_KEYS = """
    attention_hidden_size hybrid_layer_ids kv_channels num_query_groups num_logits_to_keep time_step_floor time_step_max
    use_mamba_kernels use_mem_eff_path layer_types ffn_hidden_size state_size
"""
_EMBEDDINGS = "embeddings"


class Zamba2(Family):
    """Zamba 2 of 1.2B, 2.7B and 7B; a block that several layers share is in memory once."""

    final_norm = "final_layernorm"
    is_tied: bool = True

    def __init__(self, config: Config) -> None:
        config.skip(*_UNUSED_KEYS.split())
        config.expect(use_long_context=False)
        self.norm_epsilon = config.positive("rms_norm_eps", 1e-5)
        config.expect(tie_word_embeddings=True)  # without it transformers would not share blocks either
        self.has_bias = config.flag("add_bias_linear")
        config.expect(use_conv_bias=True)
        scan = read_scan(config, _SCAN_EPSILON, _ZAMBA_KEYS, activation="mamba_act")
        limits = (config.number("time_step_min", 0.001), float("inf"))
        self.scan = replace(scan, facts=replace(scan.facts, step_limits=limits))
        self.inner_size = config.count("intermediate_size", 4 * config.count("hidden_size"))
        self.activation = config.choice("hidden_act", ACTIVATIONS, "gelu")
        self.rank = config.count("adapter_rank", 128)
        self.adapts_attention = config.flag("use_shared_attention_adapter")
        self.facts = self._read_facts(config)
        # The blocks lie in the first layers that use them; files may repeat them in others.
        self.unread = (*self.unread, *(rf"\.{index}\.shared_transformer\." for index in self.users[self.num_blocks :]))

    def _read_facts(self, config: Config) -> ModelFacts:
        num_layers = config.count("num_hidden_layers")
        kinds = config.choices("layers_block_type", ("mamba", "linear_attention", "hybrid"), num_layers)
        if kinds is None or kinds[-1] == "hybrid":
            raise config.error("layers_block_type", f"a list of {num_layers} of: mamba, hybrid; the last one mamba")
        self.users = [index for index, kind in enumerate(kinds) if kind == "hybrid"]
        self.num_blocks = config.count("num_mem_blocks", 1)
        num_heads, num_kv_heads = head_counts(config)
        size = 2 * config.count("hidden_size") // num_heads
        if config.count("attention_head_dim", size) != size:
            raise config.error("attention_head_dim", f"{size}, twice the hidden size divided by the heads")
        config.assume(max_position_embeddings=4096)
        rotary = read_rotary(config, size)
        rule = rotary.rule if config.flag("use_mem_rope") else None
        attention = AttentionFacts(num_heads, num_kv_heads, size, size, (size / 2) ** -0.5, rotary=rule)
        layers = (
            LayerFacts(attention, NO_MLP, self.scan.facts) if kind == "hybrid" else LayerFacts(self.scan.facts, NO_MLP)
            for kind in kinds
        )
        return self.read_ends(config, layers, rotary.max_position)

    def begin(self, x: Node, body: Weights, step: StepInputs) -> Node:
        step.handed_on[_EMBEDDINGS] = x
        self.blocks = [body.at(f"{self.layers}.{index}.shared_transformer") for index in self.users[: self.num_blocks]]
        return x

    def layer(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        if layer.index not in self.users:
            return add(layer.keep(x), self._scanned(x, weights, layer))
        user = self.users.index(layer.index)
        change = self._shared(x, self.blocks[user % self.num_blocks], user, layer)
        change = linear(change, weights.at("linear"), self.facts.hidden_size)
        return add(x, self._scanned(add(x, change), weights.at("mamba_decoder"), layer))

    def _scanned(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        return scanned(self.norm(x, weights.at("input_layernorm")), weights.at("mamba"), layer, self.scan)

    def _shared(self, x: Node, block: Weights, user: int, layer: LayerInputs) -> Node:
        facts, attention, mlp = layer.attention, block.at("self_attn"), block.at("feed_forward")
        both = ops.concat([x, layer.step.handed_on[_EMBEDDINGS]], -1).output(0)
        normed = self.norm(both, block.at("input_layernorm"))
        widths = (facts.query_width, facts.key_width, facts.value_width)
        q, k, v = (
            linear(normed, attention.at(f"{name}_proj"), width) for name, width in zip("qkv", widths, strict=True)
        )
        if self.adapts_attention:
            q, k, v = (
                add(part, self._adapted(normed, attention.at(f"linear_{name}_adapter_list.{user}"), width))
                for part, name, width in zip((q, k, v), "qkv", widths, strict=True)
            )
        attended = attend(split_heads(q, facts.num_heads), split_heads(k, facts.num_kv_heads), v, layer)
        inside = self.norm(
            linear(attended, attention.at("o_proj"), self.facts.hidden_size), block.at("pre_ff_layernorm")
        )
        raised = linear(inside, mlp.at("gate_up_proj"), 2 * self.inner_size, bias=self.has_bias)
        raised = add(raised, self._adapted(inside, mlp.at(f"gate_up_proj_adapter_list.{user}"), 2 * self.inner_size))
        gate, up = split(raised, [self.inner_size] * 2)
        gated = multiply(ACTIVATIONS[self.activation](gate), up)
        return linear(gated, mlp.at("down_proj"), self.facts.hidden_size, bias=self.has_bias)

    def _adapted(self, x: Node, weights: Weights, width: int) -> Node:
        return linear(linear(x, weights.at("0"), self.rank), weights.at("1"), width)


# RecurrentGemma: two of three layers are gated recurrences, the others attend in a window.
_FADING = -8.0  # a state fades at most by e to this times softplus of its parameter


class RecurrentGemma(Alternating):
    """RecurrentGemma 2B and 9B."""

    layer_norms = LayerNorms("temporal_pre_norm", "channel_pre_norm")
    mlp_name = "mlp_block"
    final_norm = "final_norm"
    norm_offset = 1.0
    rotary_part = 0.5
    output_bias = mlp_bias = True
    is_tied: bool = True
    attention_name = "temporal_block"

    def __init__(self, config: Config) -> None:
        config.skip(
            "w_init_variance_scale", "final_w_init_variance_scale", "embeddings_scale_by_sqrt_dim", "layer_types"
        )
        config.assume(max_position_embeddings=8192)
        self.logits_cap = config.number("logits_soft_cap", 30.0)
        self.embedding_factor = float(
            ml_dtypes.bfloat16(config.count("hidden_size") ** 0.5)
        )  # checkpoints learned with this rounding
        super().__init__(config)

    def read_facts(self, config: Config) -> ModelFacts:
        kinds = config.value("block_types", config.value("_block_types", ["recurrent", "recurrent", "attention"]))
        if not isinstance(kinds, list) or not kinds or not all(kind in ("recurrent", "attention") for kind in kinds):
            raise config.error("block_types", "a list of: recurrent, attention")
        num_layers = config.count("num_hidden_layers")
        self.attends = tuple(kinds[index % len(kinds)] == "attention" for index in range(num_layers))
        self.refuse_no_attention()
        width = config.count("lru_width", config.count("hidden_size"))
        if width % config.count("num_attention_heads"):
            raise config.error("lru_width", "a multiple of num_attention_heads")
        self.other = self.recurrence = GatedRecurrenceFacts(
            width, ConvolutionFacts(width, config.count("conv1d_width", 4, least=2))
        )
        self.window = config.count("attention_window_size", 2048)
        self.slides = (True,) * num_layers
        return super().read_facts(config)

    def mlp_facts(self, config: Config, index: int) -> MlpFacts:
        activation = config.choice("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh")
        return MlpFacts(config.count("intermediate_size", least=2) // 2, activation)

    def mix_otherwise(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        weights, width = weights.at(self.attention_name), self.recurrence.width
        sides = [weights.at("linear_x"), weights.at("linear_y")]
        inner, gate = linears(x, sides, [width, width], bias=True, is_fused=True)
        inner = convolve(inner, weights.at("conv_1d"), layer, bias=True)
        recurrence = weights.at("rg_lru")
        gates = [self._head_gates(inner, recurrence, f"{name}_gate") for name in ("input", "recurrent")]
        rates = _FADING * np.logaddexp(0, recurrence.vector(width, "recurrent_param"))
        read = layer.keep(gated_recurrence([inner, *gates], rates, layer))
        activation = ACTIVATIONS[self.facts.layers[layer.index].mlp.activation]
        return linear(
            multiply(read, activation(layer.keep(gate))), weights.at("linear_out"), self.facts.hidden_size, bias=True
        )

    def _head_gates(self, x: Node, weights: Weights, name: str) -> Node:
        """Gates of each head by its own small matrix, in f32. Shapes: [T, 1, width] -> [T, 1, width]."""
        num_heads = next(iter(self.facts.attention_layers.values())).num_heads
        size = self.recurrence.width // num_heads
        matrices = np.asarray(weights.tensor((num_heads, size, size), f"{name}_weight"), np.float32)
        shifts = np.asarray(weights.tensor((num_heads, size), f"{name}_bias"), np.float32)
        heads = reshape(x, -1, num_heads, 1, size)
        products = ops.matmul(heads, constant(matrices[None]), transpose_a=False, transpose_b=False).output(0)
        return reshape(add(products, constant(shifts.reshape(1, num_heads, 1, size))), -1, 1, self.recurrence.width)
