"""GPT-2: a table of positions, and matrices stored [in, out]; StarCoder 1 has one head of keys and values for all."""

from __future__ import annotations

from dataclasses import replace

from dragoman.models.blocks.attention import Projections, in_turn
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts
from dragoman.models.families.base import Layout
from dragoman.models.families.gpt import Gpt, Names
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class Gpt2(Gpt):
    """GPT-2, DistilGPT2, DialoGPT and related models."""

    architectures = ("GPT2LMHeadModel",)
    layouts = (Layout("transformer", "lm_head"), Layout("", "lm_head"))
    names = Names("ln_1", ("attn.c_attn",), "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    positions = "wpe"

    def read(self, config: Config) -> None:
        self.is_scaled = config.flag("scale_attn_weights", True)
        self.is_scaled_by_layer = config.flag("scale_attn_by_inverse_layer_idx")
        config.skip("reorder_and_upcast_attn")  # about the precision of scores; here they are f32
        config.skip(
            "n_special", "num_labels", "output_past", "predict_special_tokens"
        )  # from libraries before transformers

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        facts = super().attention_facts(config, index)
        scale = facts.scale if self.is_scaled else 1.0
        return replace(facts, scale=scale / (index + 1) if self.is_scaled_by_layer else scale)

    def layer(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        return super().layer(x, weights.transposed(), layer)

    def cut(self, fused: Weights, facts: AttentionFacts) -> Projections:
        return in_turn(fused, facts)


class GptBigCode(Gpt):
    """StarCoder 1, StarCoderBase, SantaCoder in this layout."""

    architectures = ("GPTBigCodeForCausalLM",)
    layouts = (Layout("transformer", "lm_head"),)
    names = Names("ln_1", ("attn.c_attn",), "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    positions = "wpe"

    def read(self, config: Config) -> None:
        config.assume(hidden_act="gelu_pytorch_tanh")
        self.is_scaled = config.flag("scale_attn_weights", True)
        # about other libraries: precision of scores (f32 here), caches and checks
        config.skip(
            "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "inference_runner", "max_batch_size"
        )
        config.skip("max_sequence_length", "pad_key_length", "pre_allocate_kv_cache", "validate_runner_input")

    def head_counts(self, config: Config) -> tuple[int, int]:
        num_heads = config.count("num_attention_heads")
        num_kv_heads = 1 if config.flag("multi_query", True) else num_heads
        config.expect(num_key_value_heads=num_kv_heads)
        return num_heads, num_kv_heads

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        facts = super().attention_facts(config, index)
        return facts if self.is_scaled else replace(facts, scale=1.0)
