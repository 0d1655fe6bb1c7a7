"""EXAONE 4 with DeepSeek V3's experts, and with norms before attention and MLP."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.facts import ExpertFacts
from dragoman.models.families.deepseek import BiasedExperts
from dragoman.models.families.exaone4 import Exaone4
from dragoman.models.families.llama import LayerNorms


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
