"""gpt-oss: attention with sinks, every other layer with a window, and experts with biases and a bounded activation."""

from __future__ import annotations

from dataclasses import replace

from openvino import opset13 as ops

from dragoman.models.blocks.mlp import ExpertWeights, Gating, evaluate_experts, route
from dragoman.models.blocks.nodes import add, multiply, scalar
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts, ExpertFacts, RoutingRule
from dragoman.models.families.experts import active_count
from dragoman.models.families.llama import Llama, all_but_every, read_slides
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class GptOss(Llama):
    """gpt-oss 20B and 120B, with experts as MXFP4 or unpacked."""

    epsilon = ("rms_norm_eps", 1e-5)
    packings = ("mxfp4",)
    qkv_bias = output_bias = ("attention_bias", True)

    def __init__(self, config: Config) -> None:
        config.skip("output_router_logits", "router_aux_loss_coef")  # only for training
        config.skip("initial_context_length")  # the rotary rule has it too
        config.expect(hidden_act="silu", experts_per_token=config.value("num_experts_per_tok"))
        self.gain, self.limit = config.number("swiglu_alpha", 1.702), config.number("swiglu_limit", 7.0)
        super().__init__(config)

    # --- config.json --------------------------------------------------------------------------------------------------

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        return read_slides(config, all_but_every(2))

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        return replace(super().attention_facts(config, index), has_sinks=True)

    def mlp_facts(self, config: Config, index: int) -> ExpertFacts:
        num_experts = config.count("num_local_experts")
        active = active_count(config, "num_experts_per_tok", num_experts)
        rule = RoutingRule(score="chosen")
        return ExpertFacts(num_experts, active, config.count("intermediate_size"), "bounded_swiglu", rule)

    # --- the graph ----------------------------------------------------------------------------------------------------

    def mlp(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        facts = self.facts.layers[layer.index].mlp
        assert isinstance(facts, ExpertFacts)
        routing = route(x, weights.at("router"), facts, bias=True)
        stored = weights.at("experts").transposed()
        raised = stored.renamed(weight="gate_up_proj", bias="gate_up_proj_bias")
        lowered = stored.renamed(weight="down_proj", bias="down_proj_bias")
        experts = []
        for index in range(facts.num_experts):
            both = raised.stacked(index, facts.num_experts)  # rows of gate and up alternate
            gate, up = (both.rows(slice(begin, None, 2), 2 * facts.inner_size) for begin in (0, 1))
            experts.append(ExpertWeights(gate, up, lowered.stacked(index, facts.num_experts)))
        gating = Gating(self._bounded_swiglu, f"bounded_swiglu {self.gain!r} {self.limit!r}")
        return evaluate_experts(x, routing, experts, facts, gating, bias=True)

    def _bounded_swiglu(self, gate: Node, up: Node) -> Node:
        gated = ops.swish(ops.minimum(gate, scalar(self.limit)), scalar(self.gain)).output(0)
        return multiply(add(ops.clamp(up, -self.limit, self.limit).output(0), scalar(1.0)), gated)
