"""EXAONE 4: norms after attention and MLP and on each head's queries and keys; layers that see everything may not turn."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.families.olmo import NORMS_AFTER
from dragoman.models.families.qwen import Qwen3
from dragoman.models.families.windows import all_but_every, no_slides, read_slides


class Exaone4(Qwen3):
    """EXAONE 4.0 1.2B and 32B."""

    architectures = ("Exaone4ForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)
    layer_norms = NORMS_AFTER

    def attention_biases(self, config: Config) -> tuple[bool, bool]:
        return False, False

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        self.has_windows = "sliding_window" in config
        if not self.has_windows:
            config.skip("sliding_window_pattern")
            return no_slides(config)
        pattern = 1 if "layer_types" in config else config.count("sliding_window_pattern", 4)
        return read_slides(config, all_but_every(pattern))

    def is_turned(self, index: int) -> bool:
        return self.slides[index] or not self.has_windows
