"""Mistral: Llama whose layers may all see a window."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.families.llama import Llama
from dragoman.models.families.windows import read_slides


class Mistral(Llama):
    """Mistral 7B, NeMo, Small."""

    architectures = ("MistralForCausalLM",)

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        return read_slides(config, lambda _index: "sliding_window" in config)

    def attention_biases(self, config: Config) -> tuple[bool, bool]:
        return False, False
