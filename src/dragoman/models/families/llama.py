"""Llama, and all decoders that are built like it: norms before, attention with rotary positions, a gated MLP."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from dragoman.models.blocks.attention import attend, queries_keys_values
from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.mlp import ACTIVATIONS, gated_mlp
from dragoman.models.blocks.nodes import add, split_heads
from dragoman.models.blocks.norms import rms_norm
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config, ModelError
from dragoman.models.facts import (
    AttentionFacts,
    ConvolutionFacts,
    ExpertFacts,
    LayerFacts,
    MlpFacts,
    ModelFacts,
    Recurrence,
)
from dragoman.models.families.base import Family
from dragoman.models.families.windows import read_window
from dragoman.models.rotary import Axes, RotaryReading, read_rotary
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class LayerNorms(NamedTuple):
    """The names of a layer's norms: of what goes into attention and MLP, and of what comes out. Empty = there is none."""

    before_attention: str = "input_layernorm"
    before_mlp: str = "post_attention_layernorm"
    after_attention: str = ""
    after_mlp: str = ""


class Llama(Family):
    """Llama 1 to 3.x.

    `epsilon`: the key of the norms' and what it is without one. `output_name`, `mlp_name`: where attention keeps the matrix
    of its output, and a layer its MLP. `is_parallel`: the
    MLP reads what attention reads, and both are added at once. `axes`: see `read_rotary`.
    """

    architectures = ("LlamaForCausalLM",)
    epsilon: ClassVar[tuple[str, float]] = ("rms_norm_eps", 1e-6)
    layer_norms: ClassVar[LayerNorms] = LayerNorms()
    output_name: ClassVar[str] = "o_proj"
    mlp_name: ClassVar[str] = "mlp"
    is_parallel: bool = False
    axes: ClassVar[Axes | None] = None

    def __init__(self, config: Config) -> None:
        self.norm_epsilon = config.positive(*self.epsilon)
        self.is_tied = config.flag("tie_word_embeddings", self.is_tied)
        self.has_qkv_bias, self.has_output_bias = self.attention_biases(config)
        self.has_mlp_bias = config.flag("mlp_bias")
        config.skip("pretraining_tp")
        self.rotary = self.read_rotary(config)
        self.slides = self.read_slides(config)
        self.window = read_window(config) if any(self.slides) else 0
        self.facts = self.read_facts(config)

    # --- config.json --------------------------------------------------------------------------------------------------

    def read_facts(self, config: Config) -> ModelFacts:
        """The facts, with the same attention and MLP in each layer unless a family says otherwise."""
        num_layers = config.count("num_hidden_layers")
        return ModelFacts(
            architecture=self.architectures[0],
            vocab_size=config.count("vocab_size"),
            hidden_size=config.count("hidden_size"),
            max_position=self.rotary.max_position,
            layers=tuple(
                LayerFacts(self.mixer_facts(config, index), self.mlp_facts(config, index))
                for index in range(num_layers)
            ),
            long_context_from=self.rotary.long_context_from,
        )

    def attention_biases(self, config: Config) -> tuple[bool, bool]:
        """True if queries, keys and values have a bias; True if the output has."""
        has_bias = config.flag("attention_bias")
        return has_bias, has_bias

    def read_rotary(self, config: Config) -> RotaryReading:
        """The rule by which positions turn queries and keys."""
        return read_rotary(config, head_size(config), axes=self.axes)

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        """For each layer: True if it sees only a window."""
        return (False,) * config.count("num_hidden_layers")

    def mixer_facts(self, config: Config, index: int) -> AttentionFacts | ConvolutionFacts | Recurrence:
        """Of how a layer mixes tokens: by attention, unless a family says otherwise."""
        return self.attention_facts(config, index)

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        """Those of a layer."""
        num_heads, num_kv_heads = head_counts(config)
        size, window = head_size(config), self.window if self.slides[index] else 0
        return AttentionFacts(num_heads, num_kv_heads, size, size, size**-0.5, window, self.rotary.rule)

    def mlp_facts(self, config: Config, index: int) -> MlpFacts | ExpertFacts:
        """Those of a layer."""
        return MlpFacts(config.count("intermediate_size"), config.choice("hidden_act", ACTIVATIONS, "silu"))

    # --- the graph ----------------------------------------------------------------------------------------------------

    def norm(self, x: Node, weights: Weights) -> Node:
        """The family's norm of hidden states."""
        return rms_norm(x, weights, self.norm_epsilon)

    def last_norm(self, x: Node, body: Weights) -> Node:
        """See `Family`."""
        return self.norm(x, body.at("norm"))

    def layer(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """See `Family`."""
        names = self.layer_norms
        normed = self._normed(x, weights, names.before_attention)
        mixed = self._normed(self.mix(normed, weights, layer), weights, names.after_attention)
        x = self.residual(layer.keep(x), mixed)
        inside = layer.keep(normed) if self.is_parallel else self._normed(x, weights, names.before_mlp)
        return self.residual(
            x, self._normed(self.mlp(inside, weights.at(self.mlp_name), layer), weights, names.after_mlp)
        )

    def _normed(self, x: Node, weights: Weights, name: str) -> Node:
        return self.norm(x, weights.at(name)) if name else x

    def residual(self, x: Node, change: Node) -> Node:
        """The value that goes on after a block that has computed `change` from x."""
        return add(x, change)

    def mix(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """The mixing of tokens with each other. Shapes: [T, 1, hidden] -> the same, of the rows that the layer keeps."""
        return self.attention(x, weights.at("self_attn"), layer)

    def attention(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """Shapes: [T, 1, hidden] -> the same, of the rows that the layer keeps."""
        facts = layer.attention
        q, k, v = queries_keys_values(x, self.projections(weights, facts), facts, bias=self.has_qkv_bias)
        q, k = self.heads(q, k, weights, facts)
        sinks = weights.vector(facts.num_heads, "sinks") if facts.has_sinks else None
        attended = attend(q, k, v, layer, sinks)
        return linear(attended, weights.at(self.output_name), self.facts.hidden_size, bias=self.has_output_bias)

    def projections(self, weights: Weights, facts: AttentionFacts) -> tuple[Weights, Weights, Weights]:
        """The weights of queries, keys and values."""
        return weights.at("q_proj"), weights.at("k_proj"), weights.at("v_proj")

    def heads(self, q: Node, k: Node, weights: Weights, facts: AttentionFacts) -> tuple[Node, Node]:
        """Queries and keys by heads; families norm them here. Shapes: [T, 1, heads * size] -> [T, heads, 1, size]."""
        return split_heads(q, facts.num_heads), split_heads(k, facts.num_kv_heads)

    def mlp(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """Shapes: [T, 1, hidden] -> the same."""
        facts = self.facts.layers[layer.index].mlp
        assert isinstance(facts, MlpFacts)
        gate, up, down = self.gate_up_down(weights, facts.inner_size)
        return gated_mlp(x, gate, up, down, facts.inner_size, facts.activation, bias=self.has_mlp_bias)

    def gate_up_down(self, weights: Weights, inner_size: int) -> tuple[Weights, Weights, Weights]:
        """The matrices of the MLP."""
        return weights.at("gate_proj"), weights.at("up_proj"), weights.at("down_proj")


def head_counts(config: Config) -> tuple[int, int]:
    """(heads, key/value heads). Raises: ModelError if the second does not divide the first."""
    num_heads = config.count("num_attention_heads")
    num_kv_heads = config.count("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ModelError(
            f"config.json num_attention_heads is {num_heads}, allowed: a multiple of num_key_value_heads {num_kv_heads}"
        )
    return num_heads, num_kv_heads


def head_size(config: Config) -> int:
    """The size of a head. Raises: ModelError if the heads do not divide the hidden size and no size is said."""
    hidden_size, num_heads = config.count("hidden_size"), config.count("num_attention_heads")
    if "head_dim" not in config and hidden_size % num_heads:
        raise ModelError(
            f"config.json hidden_size is {hidden_size}, allowed: a multiple of num_attention_heads {num_heads}"
        )
    return config.count("head_dim", max(hidden_size // num_heads, 1))
