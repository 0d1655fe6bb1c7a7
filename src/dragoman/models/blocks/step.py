"""The inputs of a step as a graph sees them, shared by all its layers. Used while a graph is built, once per start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.kernels.graph import BLOCK_SLOTS, AttentionLayout, Kept
from dragoman.models.blocks.nodes import add, columns, gather_rows, parameter, unsqueeze
from dragoman.models.blocks.rotary import Angles, query_growth, rotary_angles
from dragoman.models.blocks.whole_texts import WholeTexts
from dragoman.models.facts import AttentionFacts, ConvolutionFacts, ModelFacts, QueryGrowth, RotaryRule
from dragoman.models.storage.constants import Node

PICTURE_ROWS, PICTURE_EMBEDDINGS = "picture_rows", "picture_embeddings"
TOKEN_TYPES, ROTARY_POSITIONS = "token_types", "rotary_positions"


@dataclass(frozen=True, slots=True)
class BlockTables:
    past_lens: Node
    block_indices: Node
    block_indices_begins: Node


class StepInputs:
    """The inputs of one step as nodes, shared by all layers.

    Shapes (T tokens, S sequences, R rows of logits): input_ids, position_ids i64 [T]; subsequence_begins i32 [S+1];
    max_context_len i32 [] where OpenVINO's attention reads it; sampled_tokens_indices i64 [R]; rotary_regime i64 [T]
    where sequences have a long regime. For each kind of cache past_lens i32 [S], block_indices i32 [B],
    block_indices_begins i32 [S+1]; from the second kind on names end with its number ("past_lens.1"). Layers add
    key_cache.N and value_cache.N, state_cache.N and rows_cache.N.
    Of a model that takes in pictures picture_rows i64 [M], the step's placeholders, and picture_embeddings f32 [M,
    hidden * levels]; token_types i32 [T], 1 for a placeholder, where these see each other; rotary_positions i64 [3,
    T] where tokens have three positions.
    """

    def __init__(self, facts: ModelFacts, cache_type: str | None = None, *, takes_back: bool = False) -> None:
        """`cache_type`: of our library's caches. `takes_back`: blocks keep convolutions' rows of all tokens."""
        self.facts, self.cache_type, self.takes_back = facts, cache_type, takes_back
        self.parameters: list[Any] = []
        self.token_ids, self.positions = self._input("input_ids"), self._input("position_ids")
        self.subsequence_begins = self._input("subsequence_begins", ov.Type.i32)
        self.tables = tuple(self._tables(f".{number}" if number else "") for number in range(len(facts.cache_kinds)))
        self.max_context_len = None if cache_type else self._input("max_context_len", ov.Type.i32, ())
        self.rows = self._input("sampled_tokens_indices")
        self._regimes = None if facts.long_context_from is None else self._input("rotary_regime")
        self.handed_on: dict[str, tuple[Node, ...]] = {}  # families share values between layers here, by name
        self._angles: dict[RotaryRule, Angles] = {}
        self._growth: dict[QueryGrowth, Node] = {}
        self._caches: dict[int, tuple[Any, Any]] = {}
        self._pictures = self._picture_inputs() if facts.pictures is not None else None
        sees_later = facts.pictures is not None and facts.pictures.is_bidirectional
        self.token_types = self._input(TOKEN_TYPES, ov.Type.i32) if sees_later else None
        has_axes = facts.has_axes
        self._turning_positions = self._input(ROTARY_POSITIONS, shape=(3, -1)) if has_axes else self.positions

    def angles(self, rule: RotaryRule) -> Angles:
        if rule not in self._angles:
            self._angles[rule] = rotary_angles(self._turning_positions, self._regimes, rule)
        return self._angles[rule]

    def growth(self, rule: QueryGrowth) -> Node:
        if rule not in self._growth:
            self._growth[rule] = query_growth(self.positions, rule, self.facts.max_position)
        return self._growth[rule]

    def with_pictures(self, x: Node, level: int = 0) -> Node:
        """x [T, 1, hidden] with pictures' vectors in their placeholders' places; from level 1 on these are added."""
        pictures = self.facts.pictures
        if pictures is None or self._pictures is None or level >= pictures.num_levels:
            return x
        rows, embeddings = self._pictures
        size = self.facts.hidden_size
        vectors = unsqueeze(columns(embeddings, level * size, (level + 1) * size), 1)
        if level:
            vectors = add(gather_rows(x, rows), vectors)
        return ops.scatter_update(x, rows, vectors, ops.constant(np.array(0, dtype=np.int64))).output(0)

    def caches(self, layer: int, layout: AttentionLayout | None = None) -> tuple[Any, Any]:
        """A layer's key and value caches. `layout`: of those of the library of kernels; None = the plugin chooses one."""
        if layer not in self._caches:
            shapes = (None, None) if layout is None else layout.block_shapes
            names = (f"key_cache.{layer}", f"value_cache.{layer}")
            key, value = (cache_parameter(name, shape) for name, shape in zip(names, shapes, strict=True))
            self.parameters += [key, value]
            self._caches[layer] = key, value
        return self._caches[layer]

    def kept(self, name: str, shape: tuple[int, ...], kind: int) -> Kept:
        """The state that blocks of a kind keep under that name, f32 in that shape, and the tables for it."""
        table = cache_parameter(name, [*shape[:-1], 4 * shape[-1]])
        self.parameters.append(table)
        tables = self.tables[kind]
        where = (tables.past_lens, self.subsequence_begins, tables.block_indices, tables.block_indices_begins)
        return Kept(table.output(0), where)

    def _picture_inputs(self) -> tuple[Node, Node]:
        assert self.facts.pictures is not None
        width = self.facts.hidden_size * self.facts.pictures.num_levels
        return self._input(PICTURE_ROWS), self._input(PICTURE_EMBEDDINGS, ov.Type.f32, (-1, width))

    def _tables(self, suffix: str) -> BlockTables:
        names = ("past_lens", "block_indices", "block_indices_begins")
        return BlockTables(*(self._input(name + suffix, ov.Type.i32) for name in names))

    def _input(self, name: str, dtype: Any = ov.Type.i64, shape: Sequence[int] = (-1,)) -> Node:
        self.parameters.append(parameter(name, *shape, dtype=dtype))
        return self.parameters[-1].output(0)


def cache_parameter(name: str, block: list[int] | None = None) -> Any:
    """A cache input. `block`: the shape of a block's bytes; None = the plugin gives it type and shape."""
    if block is None:
        return parameter(name, -1, -1, -1, -1, dtype=ov.Type.dynamic)
    return parameter(name, -1, *block, dtype=ov.Type.u8)


class LayerInputs:
    """The step as one layer sees it. `whole_texts`: the tokens that attend where there is no cache (`models.pooling`)."""

    whole_texts: WholeTexts | None = None

    def __init__(self, step: StepInputs, index: int) -> None:
        self.index = index
        self.step = step
        self._is_last = index == len(step.facts.layers) - 1

    def keep(self, x: Node) -> Node:
        """The rows that are needed: in the last layer those of wanted logits. Call it once keys and values are known."""
        return gather_rows(x, self.step.rows) if self._is_last else x

    def caches(self, layout: AttentionLayout | None = None) -> tuple[Any, Any]:
        shared = self.attention.cache
        return self.step.caches(self.index if shared is None else shared, layout)

    @property
    def token_types(self) -> Node | None:
        pictures = self.step.facts.pictures
        only_in_windows = pictures is not None and pictures.only_in_windows
        return None if only_in_windows and not self.attention.window else self.step.token_types

    def kept_rows(self, facts: ConvolutionFacts) -> tuple[Kept, int]:
        """The rows that blocks keep of the layer's convolution, and the number of their tokens."""
        step = self.step
        num_slots = rows_per_block(facts, takes_back=step.takes_back)
        kept = step.kept(f"rows_cache.{self.index}", (num_slots, facts.width), step.facts.convolution_kind)
        return kept, num_slots

    def kept_state(self, shape: tuple[int, ...]) -> Kept:
        return self.step.kept(f"state_cache.{self.index}", shape, self.step.facts.state_kind)

    @property
    def attention(self) -> AttentionFacts:
        return self.step.facts.attention_layers[self.index]

    @property
    def tables(self) -> BlockTables:
        return self.step.tables[self.step.facts.cache_kind(self.index)]


def rows_per_block(facts: ConvolutionFacts, *, takes_back: bool) -> int:
    """The number of a block's last tokens whose rows are kept: those looked back at, all if tokens may be taken back."""
    return BLOCK_SLOTS if takes_back else min(facts.length - 1, BLOCK_SLOTS)
