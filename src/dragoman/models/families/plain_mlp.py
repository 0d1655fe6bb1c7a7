"""Llama without a gate in its MLP: Arcee, Nemotron and Jais 2, the latter two with LayerNorm; and Apertus, with xIELU.

Sources: Nemotron-4, arXiv:2402.16819; xIELU, arXiv:2411.13010; the releases of the others.
"""

from __future__ import annotations

import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import add, multiply, scalar, scaled, width
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import MlpFacts
from dragoman.models.families.llama import LayerNorms, Llama
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class Arcee(Llama):
    """Arcee's AFM 4.5B."""

    architectures = ("ArceeForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)
    mlp_names = ("up_proj", "down_proj")
    has_gate = False

    def mlp_facts(self, config: Config, index: int) -> MlpFacts:
        return MlpFacts(config.count("intermediate_size"), config.choice("hidden_act", ACTIVATIONS, "relu2"))


class Nemotron(Arcee):
    """Nemotron-4 and Minitron, dense: norms add one to their weights, half of a head has rotary positions."""

    architectures = ("NemotronForCausalLM",)
    epsilon = ("norm_eps", 1e-5)
    rotary_part = 0.5
    has_layer_norms = True
    norm_offset = 1.0


class Jais2(Arcee):
    """Jais 2 8B and 70B: biases everywhere."""

    architectures = ("Jais2ForCausalLM",)
    epsilon = ("layer_norm_eps", 1e-5)
    has_layer_norms = True

    def __init__(self, config: Config) -> None:
        config.assume(attention_bias=True, mlp_bias=True)
        super().__init__(config)


class Apertus(Llama):
    """Apertus 8B and 70B."""

    architectures = ("ApertusForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)
    layer_norms = LayerNorms("attention_layernorm", "feedforward_layernorm")
    head_norms = "each"

    def __init__(self, config: Config) -> None:
        config.expect(mlp_bias=False, post_norm=False, qk_norm=True)
        config.assume(rope_theta=12_000_000.0)
        super().__init__(config)

    def mlp_facts(self, config: Config, index: int) -> MlpFacts:
        return MlpFacts(config.count("intermediate_size"), config.choice("hidden_act", ("xielu",), "xielu"))

    def mlp(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        inner = linear(x, weights.at("up_proj"), self.facts.layers[layer.index].mlp.inner_size)
        return linear(_xielu(inner, weights.at("act_fn")), weights.at("down_proj"), width(x))


def _xielu(x: Node, weights: Weights) -> Node:
    """A parabola above zero, and below it what an exponential leaves of a line; how steep they are is learned."""
    positive, negative = (float(np.logaddexp(0, weights.vector(1, name)[0])) for name in ("alpha_p", "alpha_n"))
    slope, edge = (float(np.asarray(weights.tensor((), name)).astype(np.float32)) for name in ("beta", "eps"))
    above = scaled(multiply(x, x), positive)
    fallen = add(ops.elu(ops.minimum(x, scalar(edge)), 1.0).output(0), scaled(x, -1.0))
    is_above = ops.greater(x, scalar(0.0))
    return add(ops.select(is_above, above, scaled(fallen, slope + negative)).output(0), scaled(x, slope))
