"""Families that differ from Llama in a line or two."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.families.llama import Llama


class SeedOss(Llama):
    """Seed-OSS: the output's bias has its own switch."""

    architectures = ("SeedOssForCausalLM",)

    def attention_biases(self, config: Config) -> tuple[bool, bool]:
        return config.flag("attention_bias", True), config.flag("attention_out_bias")


class Ernie45(Llama):
    """ERNIE 4.5, dense: adjacent rotary pairs, one switch for all biases."""

    architectures = ("Ernie4_5ForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)
    has_interleaved_pairs = True
    is_tied = True

    def __init__(self, config: Config) -> None:
        config.expect(compression_ratio=1.0)
        super().__init__(config)
        self.has_mlp_bias = config.flag("use_bias")

    def attention_biases(self, config: Config) -> tuple[bool, bool]:
        return config.flag("use_bias"), config.flag("use_bias")
