"""Gemma 1 to 4 (text): Llama with scaled embeddings, norms that add one to their weights, and gelu.

Gemma 2 also norms the outputs of attention and MLP, and caps scores and logits. Gemma 3 norms queries and keys instead.
Sources: the releases; for Gemma 3n AltUp, arXiv:2301.13310, and Laurel, arXiv:2411.07501.
"""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import NormalDist
from typing import ClassVar

import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.attention import attend
from dragoman.models.blocks.linear import embedding, linear, linears
from dragoman.models.blocks.mlp import ACTIVATIONS, Routing, evaluate_experts, gated_mlp, route
from dragoman.models.blocks.nodes import (
    add,
    columns,
    gather_rows,
    integers,
    multiply,
    reshape,
    scalar,
    scaled,
    split_heads,
    width,
)
from dragoman.models.blocks.norms import rms_norm, rms_normalized
from dragoman.models.blocks.rotary import apply_rotary
from dragoman.models.blocks.step import LayerInputs, StepInputs
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts, ExpertFacts, MlpFacts, RoutingRule
from dragoman.models.families.experts import active_count, stacked_experts
from dragoman.models.families.llama import LayerNorms, Llama, all_but_every, head_size, read_slides
from dragoman.models.rotary import RotaryReading, read_two_rotaries
from dragoman.models.storage.constants import Node, constant
from dragoman.models.weights import Weights


class Gemma(Llama):
    """Gemma 1.

    `directions`: the values of `use_bidirectional_attention` with which texts are only read forwards.
    """

    directions: ClassVar[tuple[bool | str, ...]] = (False,)
    norm_offset = 1.0
    is_tied = True

    def __init__(self, config: Config) -> None:
        if config.value("use_bidirectional_attention", False) not in self.directions:
            raise config.error(
                "use_bidirectional_attention", " or ".join(json.dumps(direction) for direction in self.directions)
            )
        self.embedding_factor = config.count("hidden_size") ** 0.5
        super().__init__(config)

    def mlp_facts(self, config: Config, index: int) -> MlpFacts | ExpertFacts:
        """The first releases said "gelu" and meant its approximation."""
        named = config.choice("hidden_act", ACTIVATIONS, "gelu_pytorch_tanh")
        activation = config.choice("hidden_activation", ACTIVATIONS, named)
        return MlpFacts(config.count("intermediate_size"), "gelu_pytorch_tanh" if activation == "gelu" else activation)


class Gemma2(Gemma):
    """Gemma 2."""

    layer_norms = LayerNorms(
        before_mlp="pre_feedforward_layernorm",
        after_attention="post_attention_layernorm",
        after_mlp="post_feedforward_layernorm",
    )

    def __init__(self, config: Config) -> None:
        self.logits_cap = config.number("final_logit_softcapping", 0.0)
        super().__init__(config)

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        return read_slides(config, all_but_every(2))

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        scale = config.positive("query_pre_attn_scalar", 256.0) ** -0.5
        cap = config.number("attn_logit_softcapping", 0.0)
        return replace(super().attention_facts(config, index), scale=scale, softcap=cap)


class Gemma3(Gemma2):
    """Gemma 3, its text model."""

    head_norms = "each"

    def read_rotary(self, config: Config) -> RotaryReading:
        """The rule of layers that see everything; `self.local_rotary` is that of the others."""
        full, self.local_rotary = read_two_rotaries(config, head_size(config), "rope_local_base_freq")
        return full

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        pattern = config.count("sliding_window_pattern", config.count("_sliding_window_pattern", 6))
        return read_slides(config, all_but_every(pattern))


TABLE = "embed_tokens_per_layer"

# Gemma 4 and 3n: for each layer a token has a small vector, which the layer adds at its end. The last layers read the keys
# and values of the last layer of their kind before them.
_NAME = "per_layer"


def hand_on_per_layer(x: Node, body: Weights, step: StepInputs, num_rows: int, size: int, epsilon: float) -> None:
    """Make the vectors of all layers, of the table's rows and of the embeddings. Shapes: x [T, 1, hidden].

    Tokens beyond the table's `num_rows` have the vectors of its first row, placeholders those of `PictureFacts.pad_id`.
    """
    num_layers = len(step.facts.layers)
    token_ids, pictures = step.token_ids, step.facts.pictures
    if pictures is not None and pictures.pad_id is not None:
        is_placeholder = ops.equal(token_ids, scalar(pictures.placeholder_id, np.int64))
        token_ids = ops.select(is_placeholder, scalar(pictures.pad_id, np.int64), token_ids).output(0)
    if num_rows < step.facts.vocab_size:
        is_in_table = ops.less(token_ids, scalar(num_rows, np.int64))
        token_ids = ops.select(is_in_table, token_ids, scalar(0, np.int64)).output(0)
    rows = embedding(token_ids, body.at(TABLE), num_rows, num_layers * size, is_large=True)
    projected = scaled(linear(x, body.at("per_layer_model_projection"), num_layers * size), width(x) ** -0.5)
    normed = rms_norm(reshape(projected, -1, num_layers, size), body.at("per_layer_projection_norm"), epsilon)
    both = add(reshape(normed, -1, 1, num_layers * size), scaled(rows, size**0.5))
    step.handed_on[_NAME] = (scaled(both, 2**-0.5),)


def let_in_per_layer(x: Node, weights: Weights, layer: LayerInputs, size: int, activation: str, epsilon: float) -> Node:
    """The change by the layer's vectors, gated by x. Shapes: x [R, 1, hidden] -> the same."""
    (every,) = layer.step.handed_on[_NAME]
    vectors = layer.keep(columns(every, layer.index * size, (layer.index + 1) * size))
    gated = multiply(ACTIVATIONS[activation](linear(x, weights.at("per_layer_input_gate"), size)), vectors)
    projected = linear(gated, weights.at("per_layer_projection"), width(x))
    return rms_norm(projected, weights.at("post_per_layer_input_norm"), epsilon)


class SharesKeys(Gemma3):
    """Gemma 3 whose last layers read an earlier layer's keys and values, with embeddings for each layer.

    `pattern`: every `pattern`-th layer sees everything by default. `num_sharing`: the layers that share, by default.
    """

    large_table = TABLE
    pattern: ClassVar[int] = 6
    num_sharing: int = 0
    norm_offset = 0.0

    def __init__(self, config: Config) -> None:
        self.per_layer_size = config.count("hidden_size_per_layer_input", 256, least=0)
        self.num_per_layer_rows = config.count("vocab_size_per_layer_input", 262_144)
        self.num_sharing = config.count("num_kv_shared_layers", self.num_sharing, least=0)
        super().__init__(config)
        sharing = "|".join(str(index) for index, source in enumerate(self.sources) if source != index)
        self.unread = (*self.unread, rf"\.layers\.({sharing})\.self_attn\.(k_proj|v_proj|k_norm|v_norm)\.")  # not read

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        config.assume(sliding_window_pattern=self.pattern)
        slides = super().read_slides(config)
        first = len(slides) - self.num_sharing
        if first < 1 or set(slides[first:]) - set(slides[:first]):
            raise config.error("num_kv_shared_layers", "a number that leaves unshared layers of each kind")
        self.sources = [
            index if index < first else max(i for i in range(first) if slides[i] == kind)
            for index, kind in enumerate(slides)
        ]
        return slides

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        source = self.sources[index]
        facts = Llama.attention_facts(self, config, index)
        return replace(facts, scale=1.0, cache=None if source == index else source)

    def begin(self, x: Node, body: Weights, step: StepInputs) -> Node:
        if self.per_layer_size:
            hand_on_per_layer(x, body, step, self.num_per_layer_rows, self.per_layer_size, self.norm_epsilon)
        return x

    def attention(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """Layers that share keys and values write the same ones once more into the cache that they share."""
        facts = layer.attention
        assert facts.rotary is not None
        angles = layer.step.angles(facts.rotary)
        if facts.cache is None:
            q, k, v = self.queries_keys_values(x, weights, layer)
            k = apply_rotary(self.norm(split_heads(k, facts.num_kv_heads), weights.at("k_norm")), angles)
            ones = np.ones(facts.value_size, np.float32)
            v = rms_normalized(split_heads(v, facts.num_kv_heads), ones, self.norm_epsilon)
            layer.step.handed_on[f"keys and values of {layer.index}"] = k, v
        else:
            q = linear(x, weights.at("q_proj"), facts.query_width, bias=self.has_qkv_bias)
            k, v = layer.step.handed_on[f"keys and values of {facts.cache}"]
        q = apply_rotary(self.norm(split_heads(q, facts.num_heads), weights.at("q_norm")), angles)
        attended = attend(q, k, v, layer, is_turned=True)
        return linear(attended, weights.at("o_proj"), self.facts.hidden_size, bias=self.has_output_bias)

    def per_layer(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        activation = self.facts.layers[layer.index].mlp.activation
        return let_in_per_layer(x, weights, layer, self.per_layer_size, activation, self.norm_epsilon)


# Layers that see everything have heads of another size, and may have values that are their keys. Experts add to an MLP.
class Gemma4(SharesKeys):
    """Gemma 4 E2B, E4B, 31B and 26B-A4B."""

    directions = (False, "vision")

    def __init__(self, config: Config) -> None:
        config.assume(
            rope_parameters={
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000},
            }
        )
        self.has_one_for_both = config.flag("attention_k_eq_v")
        self.has_experts = config.flag("enable_moe_block")
        if not self.has_experts:
            config.skip("num_experts", "top_k_experts", "moe_intermediate_size")
        by_layer = _assume_sizes(config)
        super().__init__(config)
        if by_layer - {str(index) for index, slides in enumerate(self.slides) if not slides}:
            raise config.error("per_layer_config", "other sizes only in layers with full attention")

    # --- config.json --------------------------------------------------------------------------------------------------

    def read_rotary(self, config: Config) -> RotaryReading:
        full_size = config.count("global_head_dim", 512)
        full, self.local_rotary = read_two_rotaries(config, head_size(config), "rope_local_base_freq", full_size)
        return full

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        facts = super().attention_facts(config, index)
        num_kv_heads = config.count("num_global_key_value_heads", facts.num_kv_heads)
        if self.slides[index]:
            return facts
        size = config.count("global_head_dim", 512)
        if facts.num_heads % num_kv_heads:
            raise config.error("num_global_key_value_heads", f"what divides num_attention_heads, {facts.num_heads}")
        num_kv_heads = num_kv_heads if self.has_one_for_both else facts.num_kv_heads
        return replace(facts, num_kv_heads=num_kv_heads, head_size=size, value_size=size)

    def mlp_facts(self, config: Config, index: int) -> MlpFacts | ExpertFacts:
        inner_size = config.count("intermediate_size")
        shares = index >= config.count("num_hidden_layers") - self.num_sharing
        inner_size *= 2 if config.flag("use_double_wide_mlp") and shares else 1
        activation = config.choice("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh")
        if not self.has_experts:
            return MlpFacts(inner_size, activation)
        num_experts = config.count("num_experts")
        return ExpertFacts(
            num_experts,
            active_count(config, "top_k_experts", num_experts),
            config.count("moe_intermediate_size"),
            activation,
            RoutingRule(is_normalized=True),
            inner_size,
        )

    # --- the graph ----------------------------------------------------------------------------------------------------

    def layer(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        names, facts = self.layer_norms, self.facts.layers[layer.index].mlp
        mixed = self.attention(self.norm(x, weights.at(names.before_attention)), weights.at("self_attn"), layer)
        x = add(layer.keep(x), self.norm(mixed, weights.at(names.after_attention)))
        inner_size = facts.inner_size if isinstance(facts, MlpFacts) else facts.shared_size
        matrices = self.gate_up_down(weights.at("mlp"), inner_size)
        change = gated_mlp(self.norm(x, weights.at(names.before_mlp)), *matrices, inner_size, facts.activation)
        if isinstance(facts, ExpertFacts):
            dense = self.norm(change, weights.at("post_feedforward_layernorm_1"))
            routed = self.routed(x, weights, facts)
            change = add(dense, self.norm(routed, weights.at("post_feedforward_layernorm_2")))
        x = add(x, self.norm(change, weights.at(names.after_mlp)))
        if self.per_layer_size:
            x = add(x, self.per_layer(x, weights, layer))
        return multiply(x, constant(weights.vector(1, "layer_scalar")))

    def queries_keys_values(self, x: Node, weights: Weights, layer: LayerInputs) -> list[Node]:
        """A layer that sees everything may have one matrix for both keys and values."""
        if self.slides[layer.index] or not self.has_one_for_both:
            return super().queries_keys_values(x, weights, layer)
        facts, is_fused = layer.attention, weights.storage.format.fuses_attention
        parts, widths = [weights.at("q_proj"), weights.at("k_proj")], [facts.query_width, facts.key_width]
        q, k = linears(x, parts, widths, bias=self.has_qkv_bias, is_fused=is_fused)
        return [q, k, k]

    def routed(self, x: Node, weights: Weights, facts: ExpertFacts) -> Node:
        """The chosen experts' output for the input of the layer's MLP, each with a weight of its own."""
        router = weights.at("router")
        scale = router.vector(width(x), "scale") * np.float32(width(x) ** -0.5)
        chosen, shares = route(rms_normalized(x, scale, self.norm_epsilon), router.at("proj"), facts)
        weight = gather_rows(constant(router.vector(facts.num_experts, "per_expert_scale")), chosen)
        normed = self.norm(x, weights.at("pre_feedforward_layernorm_2"))
        stored = weights.at("experts")
        experts = stacked_experts(stored.renamed(weight="gate_up_proj"), stored.renamed(weight="down_proj"), facts)
        return evaluate_experts(normed, Routing(chosen, multiply(shares, weight)), experts, facts)


def _assume_sizes(config: Config) -> set[str]:
    """Raises: ModelError if sizes are not the same for all layers that see everything. As transformers 5.24 writes them."""
    layers = config.value("per_layer_config")
    if layers is None:
        return set()
    first = next(iter(layers.values()), None) if isinstance(layers, dict) else None
    names = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
    if not isinstance(first, dict) or first.keys() - names or any(other != first for other in layers.values()):
        raise config.error("per_layer_config", "head_dim and num_key_value_heads, the same for all layers in it")
    config.assume(**{names[key]: value for key, value in ({"head_dim": config.value("head_dim")} | first).items()})
    return set(layers)


_MOST_STREAMS = 64


# Several streams of hidden states, of which attention and MLP see one.
class Gemma3n(SharesKeys):
    """Gemma 3n E2B and E4B.

    Shape of the streams: [T, streams, hidden].
    """

    pattern = 5
    num_sharing = 15

    def __init__(self, config: Config) -> None:
        config.skip(
            "altup_coef_clip", "altup_lr_multiplier", "query_pre_attn_scalar"
        )  # for training; queries are normed
        config.assume(final_logit_softcapping=30.0, rope_theta=1_000_000.0)
        self.num_streams = config.count("altup_num_inputs", 4)
        if self.num_streams > _MOST_STREAMS:
            raise config.error("altup_num_inputs", f"at most {_MOST_STREAMS}")
        self.active = config.count("altup_active_idx", 0, least=0)
        if self.active >= self.num_streams:
            raise config.error("altup_active_idx", f"below altup_num_inputs, {self.num_streams}")
        self.scales_active = config.flag("altup_correct_scale", True)
        self.laurel_rank = config.count("laurel_rank", 64)
        num_layers = config.count("num_hidden_layers")
        num_sparse = 10 if num_layers > 10 else 0
        config.assume(activation_sparsity_pattern=[0.95] * num_sparse + [0.0] * (num_layers - num_sparse))
        self.sparsity = config.numbers("activation_sparsity_pattern", num_layers, least=0.0)
        if max(self.sparsity) >= 1:
            raise config.error("activation_sparsity_pattern", "numbers below 1")
        super().__init__(config)
        if not self.per_layer_size:
            raise config.error("hidden_size_per_layer_input", "at least 1")

    def mlp_facts(self, config: Config, index: int) -> MlpFacts:
        sizes = config.value("intermediate_size")
        num_layers = config.count("num_hidden_layers")
        if isinstance(sizes, list):
            size = config.numbers("intermediate_size", num_layers, least=1)[index]
            if not size.is_integer() or size >= 2**31:
                raise config.error("intermediate_size", "integers")
        else:
            size = config.count("intermediate_size")
        return MlpFacts(int(size), config.choice("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh"))

    # --- the streams --------------------------------------------------------------------------------------------------

    def begin(self, x: Node, body: Weights, step: StepInputs) -> Node:
        x = super().begin(x, body, step)
        others = [
            _as_long(linear(x, body.at(f"altup_projections.{index}"), width(x)), x)
            for index in range(self.num_streams - 1)
        ]
        return ops.concat([x, *others], 1).output(0)

    def last_norm(self, x: Node, body: Weights) -> Node:
        first, *others = (self._stream(x, index) for index in range(self.num_streams))
        made = [
            _as_long(linear(other, body.at(f"altup_unembed_projections.{index}"), width(x)), first)
            for index, other in enumerate(others)
        ]
        every = ops.concat([first, *made], 1)
        return super().last_norm(ops.reduce_mean(every, integers(1), True).output(0), body)

    def _stream(self, x: Node, index: int) -> Node:
        return ops.gather(x, integers(index), scalar(1, np.int64)).output(0)

    def _mixture(self, x: Node, altup: Weights, name: str, size: int) -> Node:
        """Numbers that say how streams act on each other, made of one. Shapes: x [R, 1, hidden] -> [R, 1, size]."""
        routed = scaled(self.norm(x, altup.at("router_norm")), 1 / width(x))
        modalities = ops.tanh(_exact(routed, altup.at("modality_router"), self.num_streams)).output(0)
        return _exact(modalities, altup.at(name), size)

    # --- a layer ------------------------------------------------------------------------------------------------------

    def layer(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """Predicts all streams, computes what one of them should be, and corrects the others by that."""
        altup, streams = weights.at("altup"), self.num_streams
        mixture = self._mixture(self._stream(x, self.active), altup, "prediction_coefs", streams**2)
        square = reshape(mixture, -1, streams, streams)
        predicted = add(ops.matmul(square, x, transpose_a=False, transpose_b=False).output(0), x)
        active = self._stream(predicted, self.active)
        computed = self.compute(active, weights, layer)
        predicted, active = layer.keep(predicted), layer.keep(active)
        gains = add(self._mixture(computed, altup, "correction_coefs", streams), scalar(1.0))
        surprise = add(computed, scaled(active, -1.0))
        corrected = add(predicted, multiply(reshape(gains, -1, streams, 1), surprise))
        first = self._stream(corrected, self.active)
        size = width(x)
        if self.scales_active:
            first = multiply(first, constant(altup.vector(size, "correct_output_scale").reshape(1, 1, size)))
        else:
            altup.skip("correct_output_scale")
        shown = np.array([0.0] + [1.0] * (streams - 1), np.float32).reshape(1, streams, 1)  # not the first stream
        return add(corrected, multiply(self.per_layer(first, weights, layer), constant(shown)))

    def compute(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """The output of a layer of Gemma 3, with a learned residual. Shapes: [T, 1, hidden] -> [R, 1, hidden]."""
        names, size = self.layer_norms, width(x)
        normed = self.norm(x, weights.at(names.before_attention))
        mixed = self.attention(normed, weights.at("self_attn"), layer)
        after = add(layer.keep(x), self.norm(mixed, weights.at(names.after_attention)))
        kept, laurel = layer.keep(normed), weights.at("laurel")
        narrow = linear(kept, laurel.at("linear_left"), self.laurel_rank)
        learned = self.norm(linear(narrow, laurel.at("linear_right"), size), laurel.at("post_laurel_norm"))
        after = scaled(add(after, add(kept, learned)), 2**-0.5)
        change = self.mlp(self.norm(after, weights.at(names.before_mlp)), weights.at(self.mlp_name), layer)
        return add(after, self.norm(change, weights.at(names.after_mlp)))

    def mlp(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        facts, sparsity = self.facts.layers[layer.index].mlp, self.sparsity[layer.index]
        assert isinstance(facts, MlpFacts)
        if not sparsity:
            return super().mlp(x, weights, layer)
        gate, up, down = self.gate_up_down(weights, facts.inner_size)
        is_fused = gate.storage.format.fuses_mlp
        gated, raised = linears(x, [gate, up], [facts.inner_size] * 2, is_fused=is_fused)
        mean = ops.reduce_mean(gated, integers(-1), True).output(0)
        above = add(gated, scaled(mean, -1.0))
        deviation = ops.sqrt(ops.reduce_mean(multiply(above, above), integers(-1), True)).output(0)
        passed = ops.relu(add(above, scaled(deviation, -NormalDist().inv_cdf(sparsity)))).output(0)
        return linear(multiply(ACTIVATIONS[facts.activation](passed), raised), down, width(x))


def _exact(x: Node, weights: Weights, num_rows: int) -> Node:
    """A product with an uncompressed matrix: these few weights act on everything."""
    matrix = np.asarray(weights.matrix(num_rows, width(x))).astype(np.float32)
    return ops.matmul(x, constant(matrix), transpose_a=False, transpose_b=True).output(0)


def _as_long(x: Node, other: Node) -> Node:
    lengths = [ops.reduce_mean(multiply(vector, vector), integers(-1), True).output(0) for vector in (x, other)]
    length = ops.sqrt(ops.maximum(lengths[0], scalar(1e-5)))
    return multiply(x, ops.divide(ops.sqrt(lengths[1]), length).output(0))
