"""Qwen 2, 2.5 and 3: Llama with biases on queries, keys and values, or with norms of each head's queries and keys."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.families.llama import HeadNorms, Llama
from dragoman.models.families.windows import no_slides, read_slides


class Qwen2(Llama):
    """Qwen 2 and 2.5. The first `max_window_layers` have no window, the others have one if enabled."""

    architectures = ("Qwen2ForCausalLM",)

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        config.expect(use_mrope=False)
        first = config.count("max_window_layers", config.count("num_hidden_layers"), least=0)
        if config.flag("use_sliding_window") and "sliding_window" in config:
            return read_slides(config, lambda index: index >= first)
        return no_slides(config)

    def attention_biases(self, config: Config) -> tuple[bool, bool]:
        return True, False


class Qwen3(Qwen2):
    """Qwen 3."""

    architectures = ("Qwen3ForCausalLM",)
    head_norms: HeadNorms = "each"

    def attention_biases(self, config: Config) -> tuple[bool, bool]:
        return Llama.attention_biases(self, config)
