"""StarCoder2: Llama with LayerNorm, biases everywhere, a plain MLP and a window."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.families.mistral import Mistral


class Starcoder2(Mistral):
    """StarCoder2 3B, 7B, 15B."""

    architectures = ("Starcoder2ForCausalLM",)
    epsilon = ("norm_epsilon", 1e-5)
    has_layer_norms = True
    mlp_names = ("c_fc", "c_proj")
    qkv_bias = output_bias = ("use_bias", True)
    has_gate = False
    is_tied = True

    def __init__(self, config: Config) -> None:
        config.expect(mlp_type="default", norm_type="layer_norm")
        super().__init__(config)
        self.has_mlp_bias = self.has_output_bias
