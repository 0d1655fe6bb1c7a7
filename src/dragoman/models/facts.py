"""Facts of a model, the same for all families: its vocabulary and context, and the computation of each layer. Immutable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal


@dataclass(frozen=True, slots=True)
class RotaryRule:
    """The rule by which positions rotate queries and keys. `frequencies`: radians per position, for each pair of dimensions.

    The pairs cover a head's first dimensions; a pair is (i, i + half), or with `is_interleaved` (2 i, 2 i + 1) as
    stored. `magnitude` scales cosine and sine. `long_frequencies`: of the long regime, None = the same. `axes`: which
    of a token's three positions (time, row, column) rotates each pair; empty = there is one, and a text's tokens have
    three equal ones.
    Sources: RoFormer (arXiv:2104.09864); axes: Qwen2-VL (arXiv:2409.12191), section 2.1.
    """

    frequencies: tuple[float, ...]
    magnitude: float = 1.0
    is_interleaved: bool = False
    long_frequencies: tuple[float, ...] | None = None
    axes: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return 2 * len(self.frequencies)


@dataclass(frozen=True, slots=True)
class QueryGrowth:
    """Queries times 1 + `weight` ln(1 + floor((position + `first`) / `every`)). Source: arXiv:2501.19399; Llama 4."""

    every: int
    weight: float
    first: int = 0


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    """Attention of one layer. `window`: the tokens that a token sees, itself included; 0 = all.

    `rotary` None = no rotation. `alibi_slopes`: per head, empty = none. `softcap`: bounds scores, 0 = does not.
    `has_sinks`: heads may attend to nothing. `cache`: the layer whose keys and values it reads; None = its own.
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
        return self.num_heads * self.head_size

    @property
    def key_width(self) -> int:
        return self.num_kv_heads * self.head_size

    @property
    def value_width(self) -> int:
        return self.num_kv_heads * self.value_size

    @property
    def output_width(self) -> int:
        return self.num_heads * self.value_size


@dataclass(frozen=True, slots=True)
class ConvolutionFacts:
    """A short causal convolution over tokens. `width`: channels; `length`: tokens that one output depends on."""

    width: int
    length: int


@dataclass(frozen=True, slots=True)
class DeltaFacts:
    """A gated delta rule. Several heads may share keys and queries. Source: Gated DeltaNet, arXiv:2412.06464."""

    num_key_heads: int
    num_heads: int
    key_size: int
    value_size: int
    convolution: ConvolutionFacts

    @property
    def key_width(self) -> int:
        return self.num_key_heads * self.key_size

    @property
    def value_width(self) -> int:
        return self.num_heads * self.value_size

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return self.num_heads, self.key_size, self.value_size


@dataclass(frozen=True, slots=True)
class ScanFacts:
    """A selective scan by heads. Heads of a group share keys and queries. Source: Mamba 2, arXiv:2405.21060."""

    num_groups: int
    num_heads: int
    head_size: int
    state_size: int
    step_limits: tuple[float, float]
    convolution: ConvolutionFacts

    @property
    def inner_width(self) -> int:
        return self.num_heads * self.head_size

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return self.num_heads, self.state_size, self.head_size


@dataclass(frozen=True, slots=True)
class ChannelScanFacts:
    """A selective scan of each channel, with `state_size` numbers. Source: Mamba, arXiv:2312.00752."""

    width: int
    state_size: int
    convolution: ConvolutionFacts

    @property
    def state_shape(self) -> tuple[int, int]:
        return self.state_size, self.width


@dataclass(frozen=True, slots=True)
class GatedRecurrenceFacts:
    """A gated linear recurrence with a number for each channel. Source: Griffin, arXiv:2402.19427."""

    width: int
    convolution: ConvolutionFacts

    @property
    def state_shape(self) -> tuple[int, int]:
        return 1, self.width


Recurrence = DeltaFacts | ScanFacts | ChannelScanFacts | GatedRecurrenceFacts
"""Layers with a state, f32 of `state_shape` for a sequence, that the library of kernels computes."""


@dataclass(frozen=True, slots=True)
class StateFacts:
    """The state of a sequence that a graph made elsewhere keeps and updates, f32."""

    state_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MlpFacts:
    inner_size: int
    activation: str


NO_MLP = MlpFacts(0, "")
"""For layers without one."""


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """The rule that chooses a token's experts, and the share of each. `score` "chosen": the softmax over the chosen alone.

    `is_normalized`: scores of the chosen are divided by their sum, or by `least_sum` if that is larger; then they are
    multiplied by `scale`. Experts are chosen from the `num_active_groups` groups whose `group_best` best scores have
    the highest sum.
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
    num_experts: int
    num_active: int
    inner_size: int
    activation: str
    routing: RoutingRule = RoutingRule()
    shared_size: int = 0


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """One layer. `mixer` None: it mixes no tokens. `beside`: what else mixes tokens, reading what attention reads."""

    mixer: AttentionFacts | ConvolutionFacts | Recurrence | StateFacts | None
    mlp: MlpFacts | ExpertFacts
    beside: ScanFacts | None = None

    @property
    def attention(self) -> AttentionFacts | None:
        return self.mixer if isinstance(self.mixer, AttentionFacts) else None


@dataclass(frozen=True, slots=True)
class CacheKind:
    """Layers that need the same past: the last `window` tokens' keys and values, 0 = all.

    `has_states`: not of attention, but the state behind the last token, and convolutions' rows of the window's tokens.
    """

    window: int
    has_states: bool = False


@dataclass(frozen=True, slots=True)
class PictureFacts:
    """The way in which a decoder takes pictures: an embedding replaces each token `placeholder_id`.

    `num_levels`: vectors of the hidden size in an embedding; the first is the token's, the others are added to the
    first layers' outputs in turn (deepstack, arXiv:2406.04334). `is_bidirectional`: the placeholders of a picture see
    each other, later ones too; `only_in_windows`: not in layers that see everything. `pad_id`: the token whose
    embeddings for each layer placeholders have; None = their own. `splits_texts`: see `PictureRules`.
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

    `long_context_from`: a sequence with more tokens is in the long regime from its first token on. `departures`: what
    is computed otherwise than the checkpoint asks for, one line each, told at the start.
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
        return {index: layer.attention for index, layer in enumerate(self.layers) if layer.attention is not None}

    @cached_property
    def convolution_layers(self) -> dict[int, ConvolutionFacts]:
        mixers = {index: layer.mixer for index, layer in enumerate(self.layers)}
        alone = {index: mixer for index, mixer in mixers.items() if isinstance(mixer, ConvolutionFacts)}
        return dict(sorted({**alone, **{i: layer.convolution for i, layer in self.recurrent_layers.items()}}.items()))

    @cached_property
    def recurrent_layers(self) -> dict[int, Recurrence]:
        found = {index: layer.beside or layer.mixer for index, layer in enumerate(self.layers)}
        return {index: mixer for index, mixer in found.items() if isinstance(mixer, Recurrence)}

    @cached_property
    def state_layers(self) -> dict[int, Recurrence | StateFacts]:
        exported = {index: layer.mixer for index, layer in enumerate(self.layers)}
        states = {index: mixer for index, mixer in exported.items() if isinstance(mixer, StateFacts)}
        return {**self.recurrent_layers, **states}

    @property
    def needs_library(self) -> bool:
        return bool(self.convolution_layers)

    @cached_property
    def convolution_reach(self) -> int:
        """The tokens before a token that its convolutions look back at, the longest of them; 0 = there are none."""
        return max((convolution.length - 1 for convolution in self.convolution_layers.values()), default=0)

    @cached_property
    def cache_kinds(self) -> tuple[CacheKind, ...]:
        """The kinds of caches that the layers need, the one that keeps everything first."""
        windows = dict.fromkeys(attention.window for attention in self.attention_layers.values())
        kinds = [CacheKind(window) for window in sorted(windows, key=bool)]
        if self.state_layers:  # going on behind a token needs the state behind it, and the rows before
            kinds.append(CacheKind(max(self.convolution_reach, 1) + 1, has_states=True))
        return tuple(kinds)

    @cached_property
    def convolution_kind(self) -> int:
        return self.state_kind if self.state_layers else 0

    def without_caps(self) -> ModelFacts:
        """Facts whose scores are not capped, which `departures` tells."""
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
        return len(self.cache_kinds) - 1

    def cache_kind(self, layer: int) -> int:
        """The index in `cache_kinds` of a layer's keys and values. Raises: KeyError if it does not attend."""
        return self.cache_kinds.index(CacheKind(self.attention_layers[layer].window))
