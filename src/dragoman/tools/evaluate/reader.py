"""Runs a loaded model over windows of text, and returns all logits. Used by `evaluation` and `compress`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.forward.runner import BlockTables, ForwardBatch
from dragoman.models import LoadedModel

Array = np.ndarray[Any, Any]

_LOGIT_BYTES = 32 << 20  # of one piece, which bounds memory for any window and vocabulary
_MOST_TOKENS = 256  # of a piece
_LEAST_TOKENS = 16


def piece_tokens(vocab_size: int) -> int:
    """The tokens of a piece, bounded by the size of its logits."""
    return min(max(_LOGIT_BYTES // (4 * vocab_size), _LEAST_TOKENS), _MOST_TOKENS)


class WindowReader:
    """Reads one window after the other, in pieces of `piece` tokens. A context manager."""

    def __init__(self, loaded: LoadedModel, window: int, piece: int) -> None:
        """Allocates the key/value cache of `window` tokens."""
        self._kinds = loaded.facts.cache_kinds
        self._block_size = loaded.profile.block_size
        self._boundary = loaded.facts.long_context_from
        self._num_blocks = -(-window // self._block_size)
        # States are large, and only the last one is needed: a few blocks are used in turn, each once per step.
        in_turn = min(-(-piece // self._block_size) + 2, self._num_blocks)
        self._counts = [in_turn if kind.has_states else self._num_blocks for kind in self._kinds]
        self._piece = piece
        self._runner = OpenVinoRunner(loaded, self._counts)

    def __enter__(self) -> WindowReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def read(self, token_ids: Sequence[int], first_row: int = 0) -> Iterator[tuple[int, Array]]:
        """For each piece, the index of its first row's token and the logits f32 [rows, vocab], valid until the next.

        Omits rows before `first_row`.
        """
        num_tokens = len(token_ids)
        for begin in range(0, num_tokens, self._piece):
            end = min(begin + self._piece, num_tokens)
            first = max(begin, first_row)
            logits = self._runner.forward(self._batch(token_ids, begin, end, first))
            if first < end:
                yield first, logits

    def output(self, name: str) -> Array:
        """The further output `name` of the graph for the last piece."""
        return self._runner.output(name)

    def _batch(self, token_ids: Sequence[int], begin: int, end: int, first_row: int) -> ForwardBatch:
        first, *others = [self._tables(begin, end, count) for count in self._counts]
        is_long = self._boundary is not None and len(token_ids) > self._boundary
        return ForwardBatch(
            past_lens=first.past_lens,
            block_indices=first.block_indices,
            block_indices_begins=first.block_indices_begins,
            input_ids=np.array(token_ids[begin:end], dtype=np.int64),
            position_ids=np.arange(begin, end, dtype=np.int64),
            subsequence_begins=np.array([0, end - begin], dtype=np.int32),
            logit_indices=np.arange(first_row, max(first_row, end), dtype=np.int64) - begin,
            max_context_len=end,
            more_tables=tuple(others),
            regimes=None if self._boundary is None else np.full(end - begin, is_long, dtype=np.int64),
        )

    def _tables(self, begin: int, end: int, num_blocks: int) -> BlockTables:
        blocks = np.arange(-(-end // self._block_size), dtype=np.int32) % num_blocks
        return BlockTables(
            np.array([begin], dtype=np.int32), blocks.astype(np.int32), np.array([0, len(blocks)], dtype=np.int32)
        )
