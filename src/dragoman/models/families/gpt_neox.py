"""GPT-NeoX: attention and MLP side by side with a norm each, positions turn a part of each head."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.families.base import Layout
from dragoman.models.families.gpt import ALIASES, Gpt, Names
from dragoman.models.families.llama import head_size
from dragoman.models.rotary import read_rotary


class GptNeoX(Gpt):
    """GPT-NeoX 20B, Pythia, Dolly 2, RedPajama INCITE, the first StableLM."""

    architectures = ("GPTNeoXForCausalLM",)
    aliases = ALIASES | {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}
    layouts = (Layout("gpt_neox", "embed_out"),)
    table = "embed_in"
    layers = "layers"
    names = Names(
        "input_layernorm",
        ("attention.query_key_value",),
        "attention.dense",
        "post_attention_layernorm",
        "mlp.dense_h_to_4h",
        "mlp.dense_4h_to_h",
    )
    final_norm = "final_layer_norm"
    is_tied = False

    def read(self, config: Config) -> None:
        config.assume(hidden_act="gelu")
        config.skip("custom_pipelines")
        self.is_parallel = config.flag("use_parallel_residual", True)
        self.has_qkv_bias = self.has_output_bias = config.flag("attention_bias", True)
        self.rotary = read_rotary(config, head_size(config), part=0.25)
