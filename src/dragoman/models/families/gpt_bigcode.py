"""GPT-BigCode, that is StarCoder 1: GPT-2 with one head of keys and values for all."""

from __future__ import annotations

from dataclasses import replace

from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts
from dragoman.models.families.base import Layout
from dragoman.models.families.gpt import Gpt, Names


class GptBigCode(Gpt):
    """StarCoder 1, StarCoderBase, SantaCoder in this layout."""

    architectures = ("GPTBigCodeForCausalLM",)
    layouts = (Layout("transformer", "lm_head"),)
    names = Names("ln_1", ("attn.c_attn",), "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    positions = "wpe"

    def read(self, config: Config) -> None:
        config.assume(hidden_act="gelu_pytorch_tanh")
        self.is_scaled = config.flag("scale_attn_weights", True)
        # about how others run it: precision of scores, which are f32 here, caches and checks
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
