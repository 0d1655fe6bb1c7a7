"""GPT-J and CodeGen: one norm for attention and MLP side by side, positions turn interleaved pairs."""

from __future__ import annotations

import numpy as np

from dragoman.models.blocks.attention import Projections
from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts
from dragoman.models.families.base import Layout
from dragoman.models.families.gpt import Gpt, Names
from dragoman.models.rotary import read_rotary
from dragoman.models.weights import Weights


class GptJ(Gpt):
    """GPT-J 6B and its derivatives."""

    architectures = ("GPTJForCausalLM",)
    layouts = (Layout("transformer", "lm_head"),)
    names = Names(
        "ln_1", ("attn.q_proj", "attn.k_proj", "attn.v_proj"), "attn.out_proj", "ln_1", "mlp.fc_in", "mlp.fc_out"
    )
    is_tied = False
    has_qkv_bias = has_output_bias = False
    has_head_bias = True

    def read(self, config: Config) -> None:
        config.expect(tie_word_embeddings=False, rotary=True, scale_attn_weights=True)
        self.rotary = read_rotary(config, config.count("rotary_dim"), is_interleaved=True)


class CodeGen(GptJ):
    """CodeGen 1, and 2 of 1B to 16B: queries, values and keys are stored in four parts."""

    architectures = ("CodeGenForCausalLM",)
    names = Names("ln_1", ("attn.qkv_proj",), "attn.out_proj", "ln_1", "mlp.fc_in", "mlp.fc_out")
    unread = (*GptJ.unread, r"\.attn\.causal_mask$")

    def head_counts(self, config: Config) -> tuple[int, int]:
        counts = super().head_counts(config)
        if counts[0] % _PARTS:
            raise config.error("num_attention_heads", f"a multiple of {_PARTS}")
        return counts

    def cut(self, fused: Weights, facts: AttentionFacts) -> Projections:
        size = 3 * facts.query_width
        q, v, k = np.split(np.arange(size).reshape(_PARTS, 3, -1), 3, axis=1)
        return fused.rows(q.reshape(-1), size), fused.rows(k.reshape(-1), size), fused.rows(v.reshape(-1), size)


_PARTS = 4
