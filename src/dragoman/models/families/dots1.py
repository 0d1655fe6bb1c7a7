"""dots.llm1: Qwen 3's attention with DeepSeek V3's experts."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.families.deepseek import BiasedExperts
from dragoman.models.families.qwen import Qwen3


class Dots1(BiasedExperts, Qwen3):
    """dots.llm1."""

    architectures = ("Dots1ForCausalLM",)
    scoring = ("noaux_tc", "sigmoid")  # checkpoints name the method there

    def __init__(self, config: Config) -> None:
        config.assume(norm_topk_prob=False, use_sliding_window=True)
        super().__init__(config)
