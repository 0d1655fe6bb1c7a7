"""Qwen 2, 2.5 and 3: Llama with biases on queries, keys and values, or with norms of each head; dense or with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from openvino import opset13 as ops

from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.nodes import multiply
from dragoman.models.config import Config
from dragoman.models.facts import ExpertFacts, RoutingRule
from dragoman.models.families.experts import WithExperts, read_experts
from dragoman.models.families.llama import ATTENTION_BIAS, Bias, HeadNorms, Llama
from dragoman.models.families.windows import no_slides, read_slides
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class Qwen2(Llama):
    """Qwen 2 and 2.5. The first `max_window_layers` have no window, the others have one if enabled."""

    architectures = ("Qwen2ForCausalLM",)
    qkv_bias: ClassVar[Bias] = True
    output_bias: ClassVar[Bias] = False

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        config.expect(use_mrope=False)
        first = config.count("max_window_layers", config.count("num_hidden_layers"), least=0)
        if config.flag("use_sliding_window") and "sliding_window" in config:
            return read_slides(config, lambda index: index >= first)
        return no_slides(config)


class Qwen3(Qwen2):
    """Qwen 3."""

    architectures = ("Qwen3ForCausalLM",)
    head_norms: HeadNorms = "each"
    qkv_bias: ClassVar[Bias] = ATTENTION_BIAS
    output_bias: ClassVar[Bias] = ATTENTION_BIAS


class Qwen3Experts(WithExperts, Qwen3):
    """Qwen 3 30B-A3B, 235B-A22B, Coder."""

    architectures = ("Qwen3MoeForCausalLM",)

    def expert_facts(self, config: Config, index: int) -> ExpertFacts | None:
        """In every `decoder_sparse_step`-th layer but those of `mlp_only_layers`."""
        step, dense = config.count("decoder_sparse_step", 1), config.value("mlp_only_layers", [])
        if not isinstance(dense, list):
            raise config.error("mlp_only_layers", "a list of layers")
        config.rename({"num_local_experts": "num_experts"})  # transformers 5 writes this name
        facts = read_experts(config, RoutingRule(is_normalized=config.flag("norm_topk_prob")))
        return None if index in dense or (index + 1) % step else facts


class WithSharedExpert(Qwen3Experts):
    """With an expert that every token takes, as much as a gate of its own says."""

    shared_name = "shared_expert"

    def expert_facts(self, config: Config, index: int) -> ExpertFacts | None:
        facts = super().expert_facts(config, index)
        shared_size = config.count("shared_expert_intermediate_size")
        return None if facts is None else replace(facts, shared_size=shared_size)

    def shared(self, x: Node, weights: Weights, facts: ExpertFacts) -> Node:
        gate = ops.sigmoid(linear(x, weights.at("shared_expert_gate"), 1)).output(0)
        return multiply(super().shared(x, weights, facts), gate)


class Qwen2Experts(WithSharedExpert):
    """Qwen 1.5 MoE and Qwen 2 57B-A14B: with a gated expert that every token uses."""

    architectures = ("Qwen2MoeForCausalLM",)
    qkv_bias, output_bias = Qwen2.qkv_bias, Qwen2.output_bias
    head_norms = ""

    def __init__(self, config: Config) -> None:
        config.expect(qkv_bias=True)
        super().__init__(config)
