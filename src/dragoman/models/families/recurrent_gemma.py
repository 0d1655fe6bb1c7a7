"""RecurrentGemma: two of three layers are gated recurrences, the others attend in a window. Source: arXiv:2404.07839."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from openvino import opset13 as ops

from dragoman.models.blocks.linear import linear, linears
from dragoman.models.blocks.mlp import ACTIVATIONS
from dragoman.models.blocks.nodes import add, multiply, reshape
from dragoman.models.blocks.recurrence import convolve, gated_recurrence
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import ConvolutionFacts, GatedRecurrenceFacts, MlpFacts, ModelFacts
from dragoman.models.families.llama import Alternating, LayerNorms
from dragoman.models.storage.constants import Node, constant
from dragoman.models.weights import Weights

_FADING = -8.0  # a state fades at most by e to this times softplus of its parameter


class RecurrentGemma(Alternating):
    """RecurrentGemma 2B and 9B."""

    architectures = ("RecurrentGemmaForCausalLM",)
    layer_norms = LayerNorms("temporal_pre_norm", "channel_pre_norm")
    mlp_name = "mlp_block"
    final_norm = "final_norm"
    norm_offset = 1.0
    rotary_part = 0.5
    output_bias = True
    is_tied: bool = True
    attention_name = "temporal_block"

    def __init__(self, config: Config) -> None:
        config.skip(
            "w_init_variance_scale", "final_w_init_variance_scale", "embeddings_scale_by_sqrt_dim", "layer_types"
        )
        config.assume(max_position_embeddings=8192)
        self.logits_cap = config.number("logits_soft_cap", 30.0)
        self.embedding_factor = float(
            ml_dtypes.bfloat16(config.count("hidden_size") ** 0.5)
        )  # checkpoints learned with this rounding
        super().__init__(config)
        self.has_mlp_bias = True

    def read_facts(self, config: Config) -> ModelFacts:
        kinds = config.value("block_types", config.value("_block_types", ["recurrent", "recurrent", "attention"]))
        if not isinstance(kinds, list) or not kinds or not all(kind in ("recurrent", "attention") for kind in kinds):
            raise config.error("block_types", "a list of: recurrent, attention")
        num_layers = config.count("num_hidden_layers")
        self.attends = tuple(kinds[index % len(kinds)] == "attention" for index in range(num_layers))
        self.refuse_no_attention()
        width = config.count("lru_width", config.count("hidden_size"))
        if width % config.count("num_attention_heads"):
            raise config.error("lru_width", "a multiple of num_attention_heads")
        self.other = self.recurrence = GatedRecurrenceFacts(
            width, ConvolutionFacts(width, config.count("conv1d_width", 4, least=2))
        )
        self.window = config.count("attention_window_size", 2048)
        self.slides = (True,) * num_layers
        return super().read_facts(config)

    def mlp_facts(self, config: Config, index: int) -> MlpFacts:
        activation = config.choice("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh")
        return MlpFacts(config.count("intermediate_size", least=2) // 2, activation)

    def mix_otherwise(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        weights, width = weights.at(self.attention_name), self.recurrence.width
        sides = [weights.at("linear_x"), weights.at("linear_y")]
        inner, gate = linears(x, sides, [width, width], bias=True, is_fused=True)
        inner = convolve(inner, weights.at("conv_1d"), layer, bias=True)
        recurrence = weights.at("rg_lru")
        gates = [self._head_gates(inner, recurrence, f"{name}_gate") for name in ("input", "recurrent")]
        rates = _FADING * np.logaddexp(0, recurrence.vector(width, "recurrent_param"))
        read = layer.keep(gated_recurrence([inner, *gates], rates, layer))
        activation = ACTIVATIONS[self.facts.layers[layer.index].mlp.activation]
        return linear(
            multiply(read, activation(layer.keep(gate))), weights.at("linear_out"), self.facts.hidden_size, bias=True
        )

    def _head_gates(self, x: Node, weights: Weights, name: str) -> Node:
        """Gates of each head by its own small matrix, in f32. Shapes: [T, 1, width] -> [T, 1, width]."""
        num_heads = next(iter(self.facts.attention_layers.values())).num_heads
        size = self.recurrence.width // num_heads
        matrices = np.asarray(weights.tensor((num_heads, size, size), f"{name}_weight"), np.float32)
        shifts = np.asarray(weights.tensor((num_heads, size), f"{name}_bias"), np.float32)
        heads = reshape(x, -1, num_heads, 1, size)
        products = ops.matmul(heads, constant(matrices[None]), transpose_a=False, transpose_b=False).output(0)
        return reshape(add(products, constant(shifts.reshape(1, num_heads, 1, size))), -1, 1, self.recurrence.width)
