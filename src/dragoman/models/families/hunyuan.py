"""Hunyuan, the dense ones: Llama that norms each head's queries and keys after turning them, by a stretched base."""

from __future__ import annotations

from dragoman.models.blocks.attention import HeadNorm
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.families.llama import Llama, head_size
from dragoman.models.rotary import RotaryReading, read_rotary, rotary_description
from dragoman.models.weights import Weights


class HunyuanDense(Llama):
    """Hunyuan 0.5B to 7B of 2025."""

    architectures = ("HunYuanDenseV1ForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)

    def __init__(self, config: Config) -> None:
        config.expect(norm_type="rms", use_cla=False, use_qk_norm=True, use_rotary_pos_emb=True)
        config.expect(attention_head_dim=head_size(config), org_vocab_size=config.count("vocab_size"))
        config.skip("add_classification_head", "cla_share_factor", "class_num", "dense_list", "enable_lm_head_fp32")
        config.skip("mask_init_id", "pool_type", "eod_token_id", "pad_id", "im_start_id", "im_end_id", "im_newline_id")
        config.skip("text_start_id", "text_end_id")
        super().__init__(config)

    def read_rotary(self, config: Config) -> RotaryReading:
        """`alpha` is a fixed stretch of the base, though its type is called dynamic; other numbers do not count then."""
        described, size = rotary_description(config), head_size(config)
        if "alpha" not in described:
            return read_rotary(config, size)
        described.expect(type="dynamic", rope_type="dynamic")
        theta = described.positive("rope_theta", config.positive("rope_theta", 10_000.0))
        stretched = theta * described.positive("alpha") ** (size / (size - 2))
        return read_rotary(config, size, scaling=Config({"rope_theta": stretched}))

    def norms_of_turned(self, weights: Weights, layer: LayerInputs) -> tuple[HeadNorm, HeadNorm]:
        return (
            lambda heads: self.norm(heads, weights.at("query_layernorm")),
            lambda heads: self.norm(heads, weights.at("key_layernorm")),
        )
