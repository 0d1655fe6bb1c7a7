"""Falcon H1: each layer attends and scans at once; config.json multiplies much of it. Source: arXiv:2507.22448."""

from __future__ import annotations

from dataclasses import replace

from dragoman.models.blocks.linear import linear, linears
from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import add, multiply, scaled
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts, LayerFacts, MlpFacts, ModelFacts
from dragoman.models.families.llama import LayerNorms, Llama
from dragoman.models.families.scans import ScanKeys, read_scan, scanned
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights

_KEYS = ScanKeys(out_bias="projectors_bias")


class FalconH1(Llama):
    """Falcon H1 of 0.5B to 34B."""

    architectures = ("FalconH1ForCausalLM",)
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
