"""EXAONE 4: norms after attention and MLP and on each head's queries and keys; full layers may not rotate.

With DeepSeek V3's experts it norms before attention and MLP.
"""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.facts import ExpertFacts
from dragoman.models.families.deepseek import BiasedExperts
from dragoman.models.families.llama import LayerNorms
from dragoman.models.families.olmo import NORMS_AFTER
from dragoman.models.families.qwen import Qwen3
from dragoman.models.families.windows import all_but_every, no_slides, read_slides


class Exaone4(Qwen3):
    """EXAONE 4.0 1.2B and 32B."""

    architectures = ("Exaone4ForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)
    layer_norms = NORMS_AFTER
    qkv_bias = output_bias = False

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        self.has_windows = "sliding_window" in config
        if not self.has_windows:
            config.skip("sliding_window_pattern")
            return no_slides(config)
        pattern = 1 if "layer_types" in config else config.count("sliding_window_pattern", 4)
        return read_slides(config, all_but_every(pattern))

    def is_turned(self, index: int) -> bool:
        return self.slides[index] or not self.has_windows


class ExaoneExperts(BiasedExperts, Exaone4):
    """K-EXAONE 236B-A23B. Layers that guess further tokens are ignored."""

    architectures = ("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM")  # type: ignore[assignment]
    layer_norms = LayerNorms()
    bias_name = "e_score_correction_bias"

    def __init__(self, config: Config) -> None:
        config.rename({"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"})
        config.rename({"first_last_k_dense_replace": "first_k_dense_replace"})
        config.assume(first_k_dense_replace=1, n_shared_experts=1, routed_scaling_factor=2.5)
        super().__init__(config)
        self.unread = (*self.unread, r"^mtp\.")
        found = [isinstance(layer.mlp, ExpertFacts) for layer in self.facts.layers]
        config.expect(is_moe_layer=found)
