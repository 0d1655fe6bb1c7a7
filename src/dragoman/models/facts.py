"""Facts of a model, the same for all families: its vocabulary and context, and the computation of each layer.

Does: hold values. Does not: read configs (families do) or build graphs. Made when a model is loaded; read for
the shapes of caches, windows and limits. Immutable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal


@dataclass(frozen=True, slots=True)
class RotaryRule:
    """The rule by which positions turn queries and keys.

    `frequencies`: radians per position, for each pair of dimensions; the pairs cover a head's first dimensions. A pair is
    (i, i + half), or with `is_interleaved` (2 i, 2 i + 1) as stored. `magnitude` scales cosine and sine.
    `long_frequencies`: those of sequences in the long regime, None = the same (`ModelFacts.long_context_from`).
    `axes`: for each pair, which of a token's three positions (time, row, column) turns it; empty = there is but one.
    A text's token has three equal ones. Source: RoFormer (arXiv:2104.09864); axes: Qwen2-VL (arXiv:2409.12191), section 2.1.
    """

    frequencies: tuple[float, ...]
    magnitude: float = 1.0
    is_interleaved: bool = False
    long_frequencies: tuple[float, ...] | None = None
    axes: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The dimensions of a head that are turned."""
        return 2 * len(self.frequencies)


@dataclass(frozen=True, slots=True)
class QueryGrowth:
    """Queries grow with their position, so that attention stays sharp: by 1 + `weight` ln(1 + floor(position' / `every`)).

    `first`: what position' is for position 0. Source: Scalable-Softmax, arXiv:2501.19399, in the steps of Llama 4.
    """

    every: int
    weight: float
    first: int = 0


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    """Attention of one layer over the tokens before, and itself.

    `head_size`: of queries and keys; `value_size`: of values. `window`: the tokens that a token sees, itself included; 0 =
    all. `rotary` None = positions are not told by turning. `alibi_slopes`: per head, empty = none. `softcap`: scores are
    bounded by it, 0 = they are not. `has_sinks`: heads may attend to nothing. `growth` None = queries are as they are.
    `cache`: the layer whose keys and values it reads; None = it has some of its own.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    value_size: int
    scale: float
    window: int = 0
    rotary: RotaryRule | None = None
    alibi_slopes: tuple[float, ...] = ()
    softcap: float = 0.0
    has_sinks: bool = False
    growth: QueryGrowth | None = None
    cache: int | None = None

    @property
    def query_width(self) -> int:
        """Of all heads together."""
        return self.num_heads * self.head_size

    @property
    def key_width(self) -> int:
        """Of all key/value heads together."""
        return self.num_kv_heads * self.head_size

    @property
    def value_width(self) -> int:
        """Of all key/value heads together."""
        return self.num_kv_heads * self.value_size

    @property
    def output_width(self) -> int:
        """Of all heads' mixtures of values together."""
        return self.num_heads * self.value_size


@dataclass(frozen=True, slots=True)
class ConvolutionFacts:
    """A short causal convolution over tokens. `width`: channels; `length`: tokens that one output depends on."""

    width: int
    length: int


@dataclass(frozen=True, slots=True)
class DeltaFacts:
    """A gated delta rule: a state, one matrix for each head, which every token lets fade and corrects.

    Keys, queries and values go through `convolution` before. Several heads may share keys and queries. Source: Gated
    DeltaNet, arXiv:2412.06464.
    """

    num_key_heads: int
    num_heads: int
    key_size: int
    value_size: int
    convolution: ConvolutionFacts

    @property
    def key_width(self) -> int:
        """Of all keys together."""
        return self.num_key_heads * self.key_size

    @property
    def value_width(self) -> int:
        """Of all heads' values together."""
        return self.num_heads * self.value_size

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """Of one sequence's state, f32."""
        return self.num_heads, self.key_size, self.value_size


@dataclass(frozen=True, slots=True)
class ScanFacts:
    """A selective scan by heads: a state, one matrix for each head, of which a token leaves a part and to which it adds.

    Heads of a group share keys and queries, of `state_size`. `step_limits`: of how much a token counts. Values, keys and
    queries go through `convolution` before. Source: Mamba 2, arXiv:2405.21060.
    """

    num_groups: int
    num_heads: int
    head_size: int
    state_size: int
    step_limits: tuple[float, float]
    convolution: ConvolutionFacts

    @property
    def inner_width(self) -> int:
        """Of all heads' values together."""
        return self.num_heads * self.head_size

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """Of one sequence's state, f32."""
        return self.num_heads, self.state_size, self.head_size


@dataclass(frozen=True, slots=True)
class ChannelScanFacts:
    """A selective scan of each channel, with `state_size` numbers, which fade at rates of their own.

    Source: Mamba, arXiv:2312.00752.
    """

    width: int
    state_size: int
    convolution: ConvolutionFacts

    @property
    def state_shape(self) -> tuple[int, int]:
        """Of one sequence's state, f32."""
        return self.state_size, self.width


@dataclass(frozen=True, slots=True)
class GatedRecurrenceFacts:
    """A gated linear recurrence with a number for each channel. Source: Griffin, arXiv:2402.19427."""

    width: int
    convolution: ConvolutionFacts

    @property
    def state_shape(self) -> tuple[int, int]:
        """Of one sequence's state, f32."""
        return 1, self.width


Recurrence = DeltaFacts | ScanFacts | ChannelScanFacts | GatedRecurrenceFacts
"""Layers with a state that the library of kernels computes."""


@dataclass(frozen=True, slots=True)
class StateFacts:
    """The state of a sequence that a graph made elsewhere keeps and updates. `state_shape`: of its f32 numbers."""

    state_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MlpFacts:
    """A dense MLP. `activation`: its name as checkpoints spell it."""

    inner_size: int
    activation: str


NO_MLP = MlpFacts(0, "")
"""Of layers without one."""


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """The rule that chooses a token's experts, and the share of each.

    `score`: of the router's outputs, "softmax" over all experts or "sigmoid" of each; or "chosen", the softmax over
    those that were chosen. `is_normalized`: scores of the chosen are divided by their sum, or by `least_sum` if that is
    larger; then they are multiplied by `scale`. `num_groups`: of experts, which are chosen from the
    `num_active_groups` groups whose `group_best` best scores have the highest sum.
    """

    score: Literal["softmax", "sigmoid", "chosen"] = "softmax"
    is_normalized: bool = False
    least_sum: float = 0.0
    scale: float = 1.0
    num_groups: int = 1
    num_active_groups: int = 1
    group_best: int = 1


@dataclass(frozen=True, slots=True)
class ExpertFacts:
    """Experts, of which each token goes through `num_active`; `shared_size`: of the one that every token takes."""

    num_experts: int
    num_active: int
    inner_size: int
    activation: str
    routing: RoutingRule = RoutingRule()
    shared_size: int = 0


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """One layer: it mixes tokens in one of several ways, then each token goes through an MLP or experts.

    Some mix no tokens, which None tells, and some have no MLP (`NO_MLP`). `beside`: what else mixes tokens, reading what
    attention reads.
    """

    mixer: AttentionFacts | ConvolutionFacts | Recurrence | StateFacts | None
    mlp: MlpFacts | ExpertFacts
    beside: ScanFacts | None = None

    @property
    def attention(self) -> AttentionFacts | None:
        """The layer's attention, None if it has none."""
        return self.mixer if isinstance(self.mixer, AttentionFacts) else None


@dataclass(frozen=True, slots=True)
class CacheKind:
    """Layers that need the same past: of attention the last `window` tokens' keys and values, 0 = all tokens'.

    `has_states`: not of attention, but the state behind the last token, and what convolutions keep of the window's tokens.
    """

    window: int
    has_states: bool = False


@dataclass(frozen=True, slots=True)
class PictureFacts:
    """The way in which a decoder takes pictures: an embedding replaces each of their placeholders.

    `placeholder_id`: the token that an embedding replaces. `num_levels`: vectors of the hidden size in an
    embedding; the first is the token's, the others are added to what the first layers give, in turn (deepstack,
    arXiv:2406.04334).
    `is_bidirectional`: the placeholders of a picture see each other, later ones too; `only_in_windows`: not in layers that
    see everything.
    `pad_id`: the token whose embeddings for each layer placeholders have; None = their own.
    `splits_texts`: see `PictureRules`.
    """

    placeholder_id: int
    num_levels: int = 1
    is_bidirectional: bool = False
    only_in_windows: bool = False
    pad_id: int | None = None
    splits_texts: bool = False


@dataclass(frozen=True)
class ModelFacts:
    """A decoder. `max_position`: its context in tokens. `pictures` None = it takes in texts only.

    `long_context_from`: a sequence with more tokens is in the long regime from its first token on, None = there is none.
    `departures`: what is computed otherwise than the checkpoint asks for, one line each, told at the start.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    max_position: int
    layers: tuple[LayerFacts, ...]
    long_context_from: int | None = None
    departures: tuple[str, ...] = ()
    pictures: PictureFacts | None = None

    @cached_property
    def has_axes(self) -> bool:
        """True if tokens have three positions, and pictures are why."""
        rules = [attention.rotary for attention in self.attention_layers.values()]
        return self.pictures is not None and any(rule is not None and rule.axes for rule in rules)

    @cached_property
    def attention_layers(self) -> dict[int, AttentionFacts]:
        """The layers that attend, by their index."""
        return {index: layer.attention for index, layer in enumerate(self.layers) if layer.attention is not None}

    @cached_property
    def convolution_layers(self) -> dict[int, ConvolutionFacts]:
        """The layers that convolve, by their index."""
        mixers = {index: layer.mixer for index, layer in enumerate(self.layers)}
        alone = {index: mixer for index, mixer in mixers.items() if isinstance(mixer, ConvolutionFacts)}
        return dict(sorted({**alone, **{i: layer.convolution for i, layer in self.recurrent_layers.items()}}.items()))

    @cached_property
    def recurrent_layers(self) -> dict[int, Recurrence]:
        """The layers with a state that we compute, by their index."""
        found = {index: layer.beside or layer.mixer for index, layer in enumerate(self.layers)}
        return {index: mixer for index, mixer in found.items() if isinstance(mixer, Recurrence)}

    @cached_property
    def state_layers(self) -> dict[int, Recurrence | StateFacts]:
        """The layers that have a state, by their index."""
        exported = {index: layer.mixer for index, layer in enumerate(self.layers)}
        states = {index: mixer for index, mixer in exported.items() if isinstance(mixer, StateFacts)}
        return {**self.recurrent_layers, **states}

    @property
    def needs_library(self) -> bool:
        """True if only the library of kernels computes some of its layers."""
        return bool(self.convolution_layers)

    @cached_property
    def convolution_reach(self) -> int:
        """The tokens before a token that its convolutions look back at, the longest of them; 0 = there are none."""
        return max((convolution.length - 1 for convolution in self.convolution_layers.values()), default=0)

    @cached_property
    def cache_kinds(self) -> tuple[CacheKind, ...]:
        """The kinds of caches that the layers need: the one that keeps everything first, the others as layers come."""
        windows = dict.fromkeys(attention.window for attention in self.attention_layers.values())
        kinds = [CacheKind(window) for window in sorted(windows, key=bool)]
        if self.state_layers:  # who goes on behind a token needs the state behind it, and the rows before itself
            kinds.append(CacheKind(max(self.convolution_reach, 1) + 1, has_states=True))
        return tuple(kinds)

    @cached_property
    def convolution_kind(self) -> int:
        """The index in `cache_kinds` of the one whose blocks keep what convolutions look back at."""
        return self.state_kind if self.state_layers else 0

    def without_caps(self) -> ModelFacts:
        """The same with scores that are not capped, which `departures` tells; itself if no layer caps them."""
        caps = sorted({attention.softcap for attention in self.attention_layers.values()} - {0.0})
        if not caps:
            return self
        layers = tuple(
            replace(layer, mixer=replace(layer.attention, softcap=0.0)) if layer.attention else layer
            for layer in self.layers
        )
        limits = " and ".join(f"{cap:g}" for cap in caps)
        departure = f"attention scores are not capped at {limits}; kernels own cap them"
        return replace(self, layers=layers, departures=(*self.departures, departure))

    @property
    def state_kind(self) -> int:
        """The index in `cache_kinds` of the one whose blocks keep states, if there are any."""
        return len(self.cache_kinds) - 1

    def cache_kind(self, layer: int) -> int:
        """The index in `cache_kinds` of a layer's keys and values. Raises: KeyError if it does not attend."""
        return self.cache_kinds.index(CacheKind(self.attention_layers[layer].window))
