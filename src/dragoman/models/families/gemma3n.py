"""Gemma 3n (text): Gemma 4's shared keys and per-layer embeddings, in several streams of hidden states; layers see one.

Sources: the Gemma 3n release; AltUp, arXiv:2301.13310; Laurel, arXiv:2411.07501.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.linear import linear, linears
from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import add, integers, multiply, reshape, scalar, scaled, width
from dragoman.models.blocks.step import LayerInputs, StepInputs
from dragoman.models.config import Config
from dragoman.models.facts import MlpFacts
from dragoman.models.families.gemma4 import SharesKeys
from dragoman.models.storage.constants import Node, constant
from dragoman.models.weights import Weights


class Gemma3n(SharesKeys):
    """Gemma 3n E2B and E4B.

    Shape of the streams: [T, streams, hidden].
    """

    architectures = ("Gemma3nForCausalLM",)
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


_MOST_STREAMS = 64


def _exact(x: Node, weights: Weights, num_rows: int) -> Node:
    """A product with an uncompressed matrix: these few weights act on everything."""
    matrix = np.asarray(weights.matrix(num_rows, width(x))).astype(np.float32)
    return ops.matmul(x, constant(matrix), transpose_a=False, transpose_b=True).output(0)


def _as_long(x: Node, other: Node) -> Node:
    lengths = [ops.reduce_mean(multiply(one, one), integers(-1), True).output(0) for one in (x, other)]
    own = ops.sqrt(ops.maximum(lengths[0], scalar(1e-5)))
    return multiply(x, ops.divide(ops.sqrt(lengths[1]), own).output(0))
