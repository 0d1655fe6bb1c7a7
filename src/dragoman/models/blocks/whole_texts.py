"""Attention among whole texts, which leave no caches behind: for models that embed or score texts.

Tokens of all texts are one list. For attention alone each text becomes a masked row as long as the longest one.
Windows are chunks of queries with the keys that they may see, so that costs grow with the texts. `models.pooling` uses
it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.models.blocks.nodes import add, gather_rows, integers, parameter, reshape, scalar
from dragoman.models.blocks.rotary import Angles, rotary_angles
from dragoman.models.facts import AttentionFacts, RotaryRule
from dragoman.models.storage.constants import Node, constant

TOKENS, POSITIONS, TOKEN_TYPES = "input_ids", "position_ids", "token_type_ids"
PLACES, ROWS, MASK = "places", "rows", "mask"
WINDOW_QUERIES, WINDOW_KEYS, WINDOW_MASK, WINDOW_ROWS = "window_queries", "window_keys", "window_mask", "window_rows"
DISTANCES, KEPT, MEMBERS, COUNTS = "distances", "kept_rows", "members", "counts"
TASKS = "task_mask"


class WholeTexts:
    """The inputs of one batch as nodes, shared by all layers.

    Shapes (T tokens, S texts, L of the longest): input_ids, position_ids and token_type_ids i64 [T]. places i64 [S,
    L]: the token in each place of a text's row, any one where the text has ended; rows i64 [T]: each token's place.
    mask f32 [S, 1, 1, L]: 0, or a very negative number where a text has ended; absent if attention is causal.
    Of C chunks of Q queries with K keys, where layers have windows: window_queries i64 [C, Q], window_keys i64 [C, K],
    window_mask f32 [C, 1, Q, K], window_rows i64 [T]. distances i64 [L, L] where there are biases by distance.
    kept_rows i64 [R]: the tokens whose last hidden states are wanted. members f32 [S, T]: 1 where a token is of a
    text, counts f32 [S, 1]: its tokens. task_mask f32 [T, C]: 1 in the columns of the task that a token's text is for.
    """

    def __init__(
        self,
        *,
        is_causal: bool,
        has_types: bool,
        has_windows: bool,
        has_distances: bool,
        keeps: bool,
        num_task_columns: int = 0,
    ) -> None:
        self.parameters: list[Any] = []
        self.token_ids, self.positions = self._input(TOKENS), self._input(POSITIONS)
        self.token_types = self._input(TOKEN_TYPES) if has_types else None
        self.places, self.rows = self._input(PLACES, [-1, -1]), self._input(ROWS)
        self.mask = None if is_causal else self._input(MASK, [-1, 1, 1, -1], ov.Type.f32)
        self.distances = self._input(DISTANCES, [-1, -1]) if has_distances else None
        self.kept = self._input(KEPT) if keeps else None
        self.tasks = self._input(TASKS, [-1, num_task_columns], ov.Type.f32) if num_task_columns else None
        self._windows: tuple[Node, Node, Node, Node] | None = None
        if has_windows:
            self._windows = (
                self._input(WINDOW_QUERIES, [-1, -1]),
                self._input(WINDOW_KEYS, [-1, -1]),
                self._input(WINDOW_MASK, [-1, 1, -1, -1], ov.Type.f32),
                self._input(WINDOW_ROWS),
            )
        self._angles: dict[RotaryRule, Angles] = {}
        self._biased: Node | None = None

    def angles(self, rule: RotaryRule) -> Angles:
        if rule not in self._angles:
            self._angles[rule] = rotary_angles(self.positions, None, rule)
        return self._angles[rule]

    def keep(self, x: Node) -> Node:
        return x if self.kept is None else gather_rows(x, self.kept)

    def means(self, x: Node) -> Node:
        """The mean of each text's rows. Shapes: [T, size] -> [S, size]."""
        members, counts = (self._input(name, [-1, size], ov.Type.f32) for name, size in ((MEMBERS, -1), (COUNTS, 1)))
        return ops.divide(ops.matmul(members, x, transpose_a=False, transpose_b=False), counts).output(0)

    def bias(self, by_distance: Node) -> None:
        """Add a bias to all layers' scores. Shapes: by_distance f32 [D, heads], chosen from by `distances`."""
        assert self.distances is not None
        assert self.mask is not None
        chosen = gather_rows(by_distance, self.distances)  # [L, L, heads]
        self._biased = add(ops.unsqueeze(ops.transpose(chosen, integers(2, 0, 1)), integers(0)), self.mask)

    def attend(self, q: Node, k: Node, v: Node, facts: AttentionFacts, *, is_windowed: bool = False) -> Node:
        """Attention within each text. Shapes: q [T, heads * size], k, v [T, kv heads * size] -> [T, heads * size]."""
        queries, keys, mask, rows = self.places, self.places, self.mask, self.rows
        if is_windowed and self._windows is not None:  # without window inputs, no text is longer than a window
            queries, keys, mask, rows = self._windows
        elif self._biased is not None:
            mask = self._biased
        heads = [
            self._laid_out(q, queries, facts, facts.num_heads),
            self._laid_out(k, keys, facts, facts.num_kv_heads),
            self._laid_out(v, keys, facts, facts.num_kv_heads),
        ]
        return self._joined(_attention(heads, facts, mask), rows, facts)

    def _laid_out(self, x: Node, places: Node, facts: AttentionFacts, num_heads: int) -> Node:
        laid = ops.reshape(gather_rows(x, places), integers(0, 0, num_heads, facts.head_size), special_zero=True)
        heads = ops.transpose(laid, integers(0, 2, 1, 3)).output(0)
        if num_heads == facts.num_heads:
            return heads
        shared = np.repeat(np.arange(num_heads), facts.num_heads // num_heads)
        return ops.gather(heads, constant(shared.astype(np.int64)), scalar(1, np.int64)).output(0)

    def _joined(self, attended: Node, rows: Node, facts: AttentionFacts) -> Node:
        by_place = reshape(ops.transpose(attended, integers(0, 2, 1, 3)).output(0), -1, facts.output_width)
        return gather_rows(by_place, rows)

    def _input(self, name: str, shape: list[int] | None = None, dtype: Any = ov.Type.i64) -> Node:
        self.parameters.append(parameter(name, *(shape or [-1]), dtype=dtype))
        return self.parameters[-1].output(0)


def _attention(heads: list[Node], facts: AttentionFacts, mask: Node | None) -> Node:
    scale = scalar(facts.scale)
    if mask is None:
        return ops.scaled_dot_product_attention(*heads, ops.constant(np.float32(0.0)), scale, causal=True).output(0)
    return ops.scaled_dot_product_attention(*heads, mask, scale).output(0)
