"""Llama, and what decoders built like it share: norms before, attention with rotary positions, windows, a gated MLP."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple

from dragoman.models.blocks.attention import HeadNorm, Projections, attend, in_turn, queries_keys_values
from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.mlp import ACTIVATIONS, gated_mlp, plain_mlp
from dragoman.models.blocks.nodes import add, clamped, split_heads
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
from dragoman.models.rotary import Axes, RotaryReading, read_rotary
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights, halves

HeadNorms = Literal["", "each", "all"]


Bias = bool | tuple[str, bool]
"""True if there is one; or the key of config.json that says it, and its default."""

ATTENTION_BIAS = ("attention_bias", False)


class LayerNorms(NamedTuple):
    """Names of a layer's norms, "" = there is none. Where the MLP is parallel to attention, both may have the same."""

    before_attention: str = "input_layernorm"
    before_mlp: str = "post_attention_layernorm"
    after_attention: str = ""
    after_mlp: str = ""


class Llama(Family):
    """Llama 1 to 3.x.

    `epsilon`: the key of the norms' and its default. `qkv_name`: of one matrix of queries, keys and values; "" = of
    three. `clip`: bounds these. `mlp_names`: of gate, up and down; two where gate and up are halves of one matrix, or
    there is no gate. `is_parallel`: the MLP does not see what attention has added. `local_rotary`: of layers with a
    window, None = the same. `head_norms`: of each head's query and key, or of all heads together, before rotation.
    """

    epsilon: ClassVar[tuple[str, float]] = ("rms_norm_eps", 1e-6)
    layer_norms: LayerNorms = LayerNorms()
    attention_name: ClassVar[str] = "self_attn"
    qkv_name: ClassVar[str] = ""
    output_name: ClassVar[str] = "o_proj"
    mlp_name: ClassVar[str] = "mlp"
    mlp_names: ClassVar[tuple[str, ...]] = ("gate_proj", "up_proj", "down_proj")
    has_gate: ClassVar[bool] = True
    qkv_bias: ClassVar[Bias] = ATTENTION_BIAS
    output_bias: ClassVar[Bias] = ATTENTION_BIAS
    mlp_bias: ClassVar[Bias] = ("mlp_bias", False)
    clip: float = 0.0
    is_parallel: bool = False
    rotary_part: ClassVar[float | None] = None
    has_interleaved_pairs: ClassVar[bool] = False
    axes: ClassVar[Axes | None] = None
    local_rotary: RotaryReading | None = None
    head_norms: HeadNorms = ""
    head_norm_names: ClassVar[tuple[str, str]] = ("q_norm", "k_norm")

    def __init__(self, config: Config) -> None:
        self.norm_epsilon = config.positive(*self.epsilon)
        self.is_tied = config.flag("tie_word_embeddings", self.is_tied)
        self.has_qkv_bias, self.has_output_bias, self.has_mlp_bias = (
            bias if isinstance(bias, bool) else config.flag(*bias)
            for bias in (self.qkv_bias, self.output_bias, self.mlp_bias)
        )
        config.skip("pretraining_tp")
        self.rotary = self.read_rotary(config)
        self.slides = self.read_slides(config)
        self.window = read_window(config) if any(self.slides) else 0
        self.facts = self.read_facts(config)

    # --- config.json --------------------------------------------------------------------------------------------------

    def read_facts(self, config: Config) -> ModelFacts:
        layers = (
            LayerFacts(self.mixer_facts(config, index), self.mlp_facts(config, index))
            for index in range(config.count("num_hidden_layers"))
        )
        return self.read_ends(config, layers, self.rotary.max_position, self.rotary.long_context_from)

    def read_rotary(self, config: Config) -> RotaryReading:
        part, is_interleaved = self.rotary_part, self.has_interleaved_pairs
        return read_rotary(config, head_size(config), part=part, is_interleaved=is_interleaved, axes=self.axes)

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        return (False,) * config.count("num_hidden_layers")

    def mixer_facts(self, config: Config, index: int) -> AttentionFacts | ConvolutionFacts | Recurrence:
        return self.attention_facts(config, index)

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        size, slides = head_size(config), self.slides[index]
        reading = self.local_rotary if slides and self.local_rotary is not None else self.rotary
        rule, window = reading.rule if self.is_turned(index) else None, self.window if slides else 0
        return AttentionFacts(*self.head_counts(config), size, size, size**-0.5, window, rule)

    def head_counts(self, config: Config) -> tuple[int, int]:
        return head_counts(config)

    def is_turned(self, index: int) -> bool:
        return True

    def mlp_facts(self, config: Config, index: int) -> MlpFacts | ExpertFacts:
        return MlpFacts(config.count("intermediate_size"), config.choice("hidden_act", ACTIVATIONS, "silu"))

    # --- the graph ----------------------------------------------------------------------------------------------------

    def layer(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        names = self.layer_norms
        normed = self._normed(x, weights, names.before_attention)
        mixed = self._normed(self.mix(normed, weights, layer), weights, names.after_attention)
        before = layer.keep(x)
        x = self.residual(before, mixed)
        if self.is_parallel and names.before_mlp == names.before_attention:
            inside = layer.keep(normed)
        else:
            inside = self._normed(before if self.is_parallel else x, weights, names.before_mlp)
        return self.residual(
            x, self._normed(self.mlp(inside, weights.at(self.mlp_name), layer), weights, names.after_mlp)
        )

    def _normed(self, x: Node, weights: Weights, name: str) -> Node:
        return self.norm(x, weights.at(name)) if name else x

    def residual(self, x: Node, change: Node) -> Node:
        return add(x, change)

    def mix(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """Tokens mixed with each other. Shapes: [T, 1, hidden] -> the same, of the rows that the layer keeps."""
        return self.attention(x, weights.at(self.attention_name), layer)

    def attention(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        facts = layer.attention
        q, k, v = self.queries_keys_values(x, weights, layer)
        q, k = self.heads(q, k, weights, facts)
        sinks = weights.vector(facts.num_heads, "sinks") if facts.has_sinks else None
        attended = attend(q, k, v, layer, sinks, self.norms_of_turned(weights, layer))
        attended = self.gated(attended, x, weights, layer)
        return linear(attended, weights.at(self.output_name), self.facts.hidden_size, bias=self.has_output_bias)

    def queries_keys_values(self, x: Node, weights: Weights, layer: LayerInputs) -> list[Node]:
        """Shapes: x [T, 1, hidden] -> three of [T, 1, heads * size]."""
        facts = layer.attention
        parts = queries_keys_values(x, self.projections(weights, facts), facts, bias=self.has_qkv_bias)
        return [clamped(part, self.clip) for part in parts]

    def projections(self, weights: Weights, facts: AttentionFacts) -> Projections:
        if self.qkv_name:
            return self.cut(weights.at(self.qkv_name), facts)
        return weights.at("q_proj"), weights.at("k_proj"), weights.at("v_proj")

    def cut(self, fused: Weights, facts: AttentionFacts) -> Projections:
        """The parts of the matrix of queries, keys and values."""
        return in_turn(fused, facts)

    def heads(self, q: Node, k: Node, weights: Weights, facts: AttentionFacts) -> tuple[Node, Node]:
        """Queries and keys by heads, normed. Shapes: [T, 1, heads * size] -> [T, heads, 1, size]."""
        of_q, of_k = (weights.at(name) for name in self.head_norm_names)
        if self.head_norms == "all":
            q, k = self.norm(q, of_q), self.norm(k, of_k)
        q, k = split_heads(q, facts.num_heads), split_heads(k, facts.num_kv_heads)
        if self.head_norms == "each":
            q, k = self.head_norm(q, of_q, facts.num_heads), self.head_norm(k, of_k, facts.num_kv_heads)
        return q, k

    def head_norm(self, x: Node, weights: Weights, num_heads: int) -> Node:
        return self.norm(x, weights)

    def norms_of_turned(self, weights: Weights, layer: LayerInputs) -> tuple[HeadNorm, HeadNorm] | None:
        """The norms of queries and keys that have been rotated."""
        return None

    def gated(self, attended: Node, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """The heads' output, of which a gate may let a part pass. `x`: what attention reads."""
        return attended

    def mlp(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        facts = self.facts.layers[layer.index].mlp
        assert isinstance(facts, MlpFacts)
        size, activation, bias = facts.inner_size, facts.activation, self.has_mlp_bias
        if not self.has_gate:
            up, down = (weights.at(name) for name in self.mlp_names)
            return plain_mlp(x, up, down, size, activation, bias=bias)
        return gated_mlp(x, *self.gate_up_down(weights, size), size, activation, bias=bias)

    def gate_up_down(self, weights: Weights, inner_size: int) -> tuple[Weights, Weights, Weights]:
        first, *second, down = (weights.at(name) for name in self.mlp_names)
        gate, up = (first, second[0]) if second else halves(first, inner_size)
        return gate, up, down


class Alternating(Llama):
    """Llama some of whose layers mix tokens otherwise. `attends`, `other`: set before the facts are read."""

    attends: tuple[bool, ...]
    other: ConvolutionFacts | Recurrence

    def refuse_no_attention(self) -> None:
        """Raises: ModelError if no layer attends."""
        if not any(self.attends):
            raise ModelError("config.json has no attention layer, allowed: at least one")

    def mixer_facts(self, config: Config, index: int) -> AttentionFacts | ConvolutionFacts | Recurrence:
        return self.attention_facts(config, index) if self.attends[index] else self.other

    def mix(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        if self.attends[layer.index]:
            return super().mix(x, weights, layer)
        return self.mix_otherwise(x, weights, layer)

    @abstractmethod
    def mix_otherwise(self, x: Node, weights: Weights, layer: LayerInputs) -> Node:
        """Shapes: [T, 1, hidden] -> the same, of the rows that the layer keeps."""


def head_counts(config: Config) -> tuple[int, int]:
    """Raises: ModelError if the second does not divide the first."""
    num_heads = config.count("num_attention_heads")
    num_kv_heads = config.count("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ModelError(
            f"config.json num_attention_heads is {num_heads}, allowed: a multiple of num_key_value_heads {num_kv_heads}"
        )
    return num_heads, num_kv_heads


def head_size(config: Config) -> int:
    hidden_size, num_heads = config.count("hidden_size"), config.count("num_attention_heads")
    if "head_dim" not in config and hidden_size % num_heads:
        raise ModelError(
            f"config.json hidden_size is {hidden_size}, allowed: a multiple of num_attention_heads {num_heads}"
        )
    return config.count("head_dim", max(hidden_size // num_heads, 1))


_KINDS = ("full_attention", "sliding_attention")


def read_slides(config: Config, is_sliding: Callable[[int], bool]) -> tuple[bool, ...]:
    """For each layer: True if it sees only a window. `is_sliding`: the default by index. Raises: ModelError."""
    num_layers = config.count("num_hidden_layers")
    kinds = config.choices("layer_types", _KINDS, num_layers)
    config.skip("sliding_window", "sliding_window_pattern", "_sliding_window_pattern")
    return tuple(kinds[index] == _KINDS[1] if kinds else is_sliding(index) for index in range(num_layers))


def no_slides(config: Config) -> tuple[bool, ...]:
    """Raises: ModelError if layer_types has windows though none is switched on."""
    slides = read_slides(config, lambda _index: False)
    if any(slides):
        raise config.error("layer_types", f"{_KINDS[0]} only, as no window is switched on")
    return slides


def read_window(config: Config) -> int:
    window = config.count("sliding_window")
    return window if window < config.count("max_position_embeddings") else 0


def all_but_every(length: int) -> Callable[[int], bool]:
    return lambda index: (index + 1) % length != 0
