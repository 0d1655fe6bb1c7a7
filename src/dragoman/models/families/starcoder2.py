"""StarCoder2: Llama with LayerNorm, biases everywhere, a plain MLP and a window."""

from __future__ import annotations

from dragoman.models.blocks.mlp import plain_mlp
from dragoman.models.blocks.norms import layer_norm
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import MlpFacts
from dragoman.models.families.mistral import Mistral
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class Starcoder2(Mistral):
    """StarCoder2 3B, 7B, 15B."""

    architectures = ("Starcoder2ForCausalLM",)
    epsilon = ("norm_epsilon", 1e-5)
    is_tied = True

    def __init__(self, config: Config) -> None:
        config.expect(mlp_type="default", norm_type="layer_norm")
        super().__init__(config)

    def attention_biases(self, config: Config) -> tuple[bool, bool]:
        """Everywhere or nowhere."""
        has_bias = config.flag("use_bias", True)
        return has_bias, has_bias

    def norm(self, x: Node, weights: Weights) -> Node:
        """LayerNorm."""
        return layer_norm(x, weights, self.norm_epsilon)

    def mlp(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """Without a gate."""
        facts = self.facts.layers[layer.index].mlp
        assert isinstance(facts, MlpFacts)
        up, down = weights.at("c_fc"), weights.at("c_proj")
        return plain_mlp(x, up, down, facts.inner_size, facts.activation, bias=self.has_output_bias)
