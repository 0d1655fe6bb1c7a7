"""GPT-J: one norm for attention and MLP side by side, positions turn interleaved pairs."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.families.base import Layout
from dragoman.models.families.gpt import Gpt, Names
from dragoman.models.rotary import read_rotary


class GptJ(Gpt):
    """GPT-J 6B and what was made of it."""

    architectures = ("GPTJForCausalLM",)
    layouts = (Layout("transformer", "lm_head"),)
    names = Names(
        "ln_1", ("attn.q_proj", "attn.k_proj", "attn.v_proj"), "attn.out_proj", "ln_1", "mlp.fc_in", "mlp.fc_out"
    )
    is_tied = False
    has_qkv_bias = has_output_bias = False
    has_head_bias = True

    def read(self, config: Config) -> None:
        """See `Gpt`."""
        config.expect(tie_word_embeddings=False, rotary=True, scale_attn_weights=True)
        self.rotary = read_rotary(config, config.count("rotary_dim"), is_interleaved=True)
