"""Granite 3 and the dense models of Granite 4: Llama with multipliers on embeddings, scores, residuals and logits."""

from __future__ import annotations

from dataclasses import replace

from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import add, scaled
from dragoman.models.blocks.step import StepInputs
from dragoman.models.config import Config, ModelError
from dragoman.models.facts import AttentionFacts, MlpFacts
from dragoman.models.families.llama import Llama
from dragoman.models.families.refused import SELECTIVE_SCANS
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights, halves


class Granite(Llama):
    """Granite 3."""

    architectures = ("GraniteForCausalLM",)

    def __init__(self, config: Config) -> None:
        self.embedding_scale = config.number("embedding_multiplier", 1.0)
        self.residual_scale = config.number("residual_multiplier", 1.0)
        self.logits_scale = 1.0 / config.positive("logits_scaling", 1.0)
        super().__init__(config)

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        """With a scale of its own."""
        return replace(super().attention_facts(config, index), scale=config.number("attention_multiplier", 1.0))

    def embed(self, body: Weights, step: StepInputs) -> Node:
        """Scaled."""
        return scaled(super().embed(body, step), self.embedding_scale)

    def residual(self, x: Node, change: Node) -> Node:
        """With the change scaled."""
        return add(x, scaled(change, self.residual_scale))

    def head(self, x: Node, weights: Weights) -> Node:
        """Scaled, before the matrix makes it wide."""
        return super().head(scaled(x, self.logits_scale), weights)


class Granite4Dense(Granite):
    """Granite 4 without experts and recurrent layers: what is left of its MLP is the one that all tokens take."""

    architectures = ("GraniteMoeHybridForCausalLM",)
    mlp_name = "shared_mlp"

    def __init__(self, config: Config) -> None:
        config.expect(num_local_experts=0, normalization_function="rmsnorm")
        num_layers = config.count("num_hidden_layers")
        kinds = config.value("layer_types")
        if isinstance(kinds, list) and "mamba" in kinds:
            raise ModelError(f"architecture {self.architectures[0]} with layers of type mamba: {SELECTIVE_SCANS}")
        if config.choices("layer_types", ("attention", "full_attention"), num_layers) is None:
            raise config.error("layer_types", f"a list of {num_layers} of: attention")
        config.skip("num_experts_per_tok", "output_router_logits", "router_aux_loss_coef", "intermediate_size")
        config.skip("init_method", "time_step_limit")
        config.skip(*(f"mamba_{name}" for name in _RECURRENT_KEYS))
        self.turns = config.choice("position_embedding_type", ("rope", "nope"), "nope") == "rope"
        super().__init__(config)

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        """Without a rotary rule if the model does not turn."""
        facts = super().attention_facts(config, index)
        return facts if self.turns else replace(facts, rotary=None)

    def mlp_facts(self, config: Config, index: int) -> MlpFacts:
        """Those of the MLP that all tokens take."""
        activation = config.choice("hidden_act", ACTIVATIONS, "silu")
        return MlpFacts(config.count("shared_intermediate_size"), activation)

    def gate_up_down(self, weights: Weights, inner_size: int) -> tuple[Weights, Weights, Weights]:
        """Gate and up as halves of one matrix."""
        return *halves(weights.at("input_linear"), inner_size), weights.at("output_linear")


_RECURRENT_KEYS = (
    "chunk_size",
    "conv_bias",
    "d_conv",
    "d_head",
    "d_state",
    "expand",
    "n_groups",
    "n_heads",
    "proj_bias",
)
