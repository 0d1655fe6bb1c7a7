"""Falcon 1 and 2: few heads of keys and values, attention and MLP side by side; the RW models are more like BLOOM."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.facts import MlpFacts
from dragoman.models.families.base import Layout
from dragoman.models.families.gpt import ALIASES, Gpt, Names, alibi_slopes
from dragoman.models.families.llama import head_counts, head_size
from dragoman.models.rotary import read_rotary


class Falcon(Gpt):
    """Falcon RW 1B to 180B and Falcon 2. `RefinedWeb` was the 40B's model type before its layout had a key."""

    architectures = ("FalconForCausalLM", "RWForCausalLM")
    aliases = ALIASES | {
        "n_head_kv": "num_key_value_heads",
        "num_kv_heads": "num_key_value_heads",
        "activation": "hidden_act",
        "ffn_hidden_size": "intermediate_size",
    }
    layouts = (Layout("transformer", "lm_head"),)
    table = "word_embeddings"

    def read(self, config: Config) -> None:
        config.assume(max_position_embeddings=2048, hidden_act="gelu")
        config.expect(apply_residual_connection_post_layernorm=False)
        self.is_new = config.flag("new_decoder_architecture", config.value("model_type") == "RefinedWeb")
        self.is_parallel = config.flag("parallel_attn", True)
        self.names = self._names(config)
        self.has_qkv_bias = self.has_output_bias = self.has_mlp_bias = config.flag("bias")
        size = head_size(config)
        if config.flag("alibi"):
            config.skip("rope_parameters", "rope_scaling", "rope_theta")  # transformers writes them all the same
            # the bias is added before scores are scaled
            slopes = alibi_slopes(config.count("num_attention_heads"))
            self.alibi = tuple(slope * size**-0.5 for slope in slopes)
        else:
            self.rotary = read_rotary(config, size)

    def _names(self, config: Config) -> Names:
        if self.is_new and not self.is_parallel:
            raise config.error("parallel_attn", "true with new_decoder_architecture")
        num_norms = config.count("num_ln_in_parallel_attn", 2 if self.is_new else 1)
        if num_norms > 1 + self.is_new:
            raise config.error("num_ln_in_parallel_attn", "1, or 2 with new_decoder_architecture")
        norms = ("input_layernorm", "input_layernorm" if self.is_parallel else "post_attention_layernorm")
        if num_norms == 2:
            norms = ("ln_attn", "ln_mlp")
        qkv = ("self_attention.query_key_value",)
        return Names(norms[0], qkv, "self_attention.dense", norms[1], "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")

    def head_counts(self, config: Config) -> tuple[int, int]:
        num_heads, is_multi_query = config.count("num_attention_heads"), config.flag("multi_query", True)
        if self.is_new:
            return head_counts(config)
        if is_multi_query:
            config.skip("num_key_value_heads")  # checkpoints give the number of all heads there
            return num_heads, 1
        config.expect(num_key_value_heads=num_heads)
        return num_heads, num_heads

    def mlp_facts(self, config: Config) -> MlpFacts:
        config.assume(intermediate_size=config.count("ff_factor", 4) * config.count("hidden_size"))
        return super().mlp_facts(config)
