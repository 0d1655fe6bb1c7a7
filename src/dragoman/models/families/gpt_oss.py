"""gpt-oss: attention with sinks, every other layer with a window, and experts with biases and a bounded activation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from openvino import opset13 as ops

from dragoman.models.blocks.experts import experts_apart, route
from dragoman.models.blocks.linear import product
from dragoman.models.blocks.nodes import add, multiply, scalar, width
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts, ExpertFacts, RoutingRule
from dragoman.models.families.experts import active_count
from dragoman.models.families.llama import Llama
from dragoman.models.families.windows import all_but_every, read_slides
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class GptOss(Llama):
    """gpt-oss 20B and 120B, their experts as MXFP4 or as numbers."""

    architectures = ("GptOssForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)
    packings = ("mxfp4",)

    def __init__(self, config: Config) -> None:
        config.skip("output_router_logits", "router_aux_loss_coef")  # of training
        config.skip("initial_context_length")  # the rotary rule has it too
        config.expect(hidden_act="silu", experts_per_token=config.value("num_experts_per_tok"))
        self.gain, self.limit = config.number("swiglu_alpha", 1.702), config.number("swiglu_limit", 7.0)
        super().__init__(config)

    # --- config.json --------------------------------------------------------------------------------------------------

    def attention_biases(self, config: Config) -> tuple[bool, bool]:
        """Of all four."""
        return config.flag("attention_bias", True), config.flag("attention_bias", True)

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        """Every second layer sees everything."""
        return read_slides(config, all_but_every(2))

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        """With sinks."""
        return replace(super().attention_facts(config, index), has_sinks=True)

    def mlp_facts(self, config: Config, index: int) -> ExpertFacts:
        """In every layer."""
        num_experts = config.count("num_local_experts")
        active = active_count(config, "num_experts_per_tok", num_experts)
        rule = RoutingRule(score="chosen")
        return ExpertFacts(num_experts, active, config.count("intermediate_size"), "bounded_swiglu", rule)

    # --- the graph ----------------------------------------------------------------------------------------------------

    def mlp(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """See `Llama`."""
        facts = self.facts.layers[layer.index].mlp
        assert isinstance(facts, ExpertFacts)
        routing = route(x, weights.at("router"), facts, bias=True)
        raised = _Stack(weights.at("experts"), "gate_up_proj", facts.num_experts, 2 * facts.inner_size, width(x))
        lowered = _Stack(weights.at("experts"), "down_proj", facts.num_experts, width(x), facts.inner_size)

        def expert(rows: Node, index: int) -> Node:
            gate, up = raised.product(rows, index, slice(0, None, 2)), raised.product(rows, index, slice(1, None, 2))
            return lowered.product(self._bounded_swiglu(gate, up), index, slice(None))

        return experts_apart(x, routing, facts.num_experts, expert, weights.storage.format)

    def _bounded_swiglu(self, gate: Node, up: Node) -> Node:
        gated = ops.swish(ops.minimum(gate, scalar(self.limit)), scalar(self.gain)).output(0)
        return multiply(add(ops.clamp(up, -self.limit, self.limit).output(0), scalar(1.0)), gated)


class _Stack:
    """One matrix of each expert: numbers [experts, in, out], or MXFP4, which comes as such."""

    def __init__(self, weights: Weights, name: str, num_experts: int, num_rows: int, num_columns: int) -> None:
        self._weights = weights.renamed(weight=name, bias=f"{name}_bias")
        self._num_experts = num_experts
        self._shape = (num_rows, num_columns)

    def product(self, x: Node, index: int, rows: slice) -> Node:
        """x times these rows of an expert's matrix, and their bias."""
        one = self._weights.stacked(index, self._num_experts)
        matrix: Any = one.transposed().matrix(*self._shape)
        bias = one.vector(self._shape[0], "bias")[rows]
        return product(x, matrix[rows], self._weights.storage, bias)
