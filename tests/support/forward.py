"""Builds a runner's input by hand, for tests that look at the kernels without the scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dragoman.engine.rolling.forward.runner import ForwardBatch


def forward_batch(rows: Sequence[tuple[Sequence[int], int, Iterable[int]]], logit_rows: Iterable[int]) -> ForwardBatch:
    """A batch of (new token ids, number of past tokens, block ids) rows; `logit_rows` are flat token positions."""
    input_ids: list[int] = []
    positions: list[int] = []
    blocks: list[int] = []
    past_lens, begins, block_begins, longest = [], [0], [0], 0
    for token_ids, num_past, block_ids in rows:
        input_ids.extend(token_ids)
        positions.extend(range(num_past, num_past + len(token_ids)))
        blocks.extend(block_ids)
        past_lens.append(num_past)
        begins.append(len(input_ids))
        block_begins.append(len(blocks))
        longest = max(longest, num_past + len(token_ids))
    return ForwardBatch(
        input_ids=np.array(input_ids, dtype=np.int64),
        position_ids=np.array(positions, dtype=np.int64),
        past_lens=np.array(past_lens, dtype=np.int32),
        subsequence_begins=np.array(begins, dtype=np.int32),
        block_indices=np.array(blocks, dtype=np.int32),
        block_indices_begins=np.array(block_begins, dtype=np.int32),
        logit_indices=np.array(list(logit_rows), dtype=np.int64),
        max_context_len=longest,
    )
