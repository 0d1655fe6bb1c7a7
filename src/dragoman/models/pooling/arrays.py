"""Fills the inputs of a graph over whole texts, see `blocks.whole_texts.WholeTexts`. Called on the engine's thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dragoman.models.blocks import whole_texts as names
from dragoman.models.pooling.facts import Kept, TextFacts
from dragoman.types import PooledText

Array = npt.NDArray[Any]

_HIDDEN = np.float32(-1e30)  # of a score: its exponential is 0, and no row is all hidden
_CHUNK = 64  # queries of a window's chunk: with fewer the keys beside them weigh more, with more most are masked


def graph_inputs(texts: Sequence[PooledText], facts: TextFacts, kept: Kept) -> dict[str, Array]:
    lengths = np.array([len(text.token_ids) for text in texts], dtype=np.int64)
    seen = np.array([text.num_seen or len(text.token_ids) for text in texts], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    longest, total = int(lengths.max()), int(lengths.sum())
    within = np.arange(total) - np.repeat(starts, lengths)  # of each token, its position in its text
    columns = np.arange(longest)
    is_there = columns < lengths[:, None]
    inputs: dict[str, Array] = {
        names.TOKENS: np.concatenate([np.asarray(text.token_ids, dtype=np.int64) for text in texts]),
        names.POSITIONS: within + facts.first_position,
        names.PLACES: np.where(is_there, starts[:, None] + columns, starts[:, None]),
        names.ROWS: within + np.repeat(np.arange(len(texts)) * longest, lengths),
    }
    if not facts.is_causal:
        inputs[names.MASK] = np.where(columns < seen[:, None], np.float32(0.0), _HIDDEN)[:, None, None]
    if facts.num_types > 1:
        seconds = np.array([text.second_from or len(text.token_ids) for text in texts])
        inputs[names.TOKEN_TYPES] = (within >= np.repeat(seconds, lengths)).astype(np.int64)
    if facts.window_reach:
        inputs |= _windows(lengths, seen, starts, facts.window_reach)
    if facts.num_distances:
        inputs[names.DISTANCES] = columns - columns[:, None] + (facts.num_distances - 1)
    if facts.num_tasks:
        columns_of = np.repeat(np.arange(facts.num_tasks), facts.task_rank)
        is_of = np.array([text.task for text in texts])[:, None] == columns_of
        inputs[names.TASKS] = np.repeat(is_of.astype(np.float32), lengths, axis=0)
    if kept != "all":
        is_kept = within == (0 if kept == "first" else np.repeat(lengths - 1, lengths))
        inputs[names.KEPT] = np.flatnonzero(is_kept | np.repeat([text.wants_tokens for text in texts], lengths))
    return inputs


def members(texts: Sequence[PooledText]) -> dict[str, Array]:
    lengths = np.array([len(text.token_ids) for text in texts], dtype=np.int64)
    owners = np.repeat(np.arange(len(texts)), lengths)
    return {
        names.MEMBERS: (owners == np.arange(len(texts))[:, None]).astype(np.float32),
        names.COUNTS: lengths[:, None].astype(np.float32),
    }


def _windows(lengths: Array, seen: Array, starts: Array, reach: int) -> dict[str, Array]:
    """Chunks of queries, and the keys that any of them may see; places outside of the text are masked."""
    counts = -(-lengths // _CHUNK)  # chunks of each text
    owners = np.repeat(np.arange(len(lengths)), counts)
    firsts = (np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)) * _CHUNK  # in the text
    queries = firsts[:, None] + np.arange(_CHUNK)
    keys = firsts[:, None] + np.arange(-reach, _CHUNK + reach)
    ends, begins = lengths[owners][:, None], starts[owners][:, None]
    has_key = (keys >= 0) & (keys < seen[owners][:, None])
    distance = np.abs(queries[:, :, None] - keys[:, None, :])
    # a query behind the text's end sees something, whatever it is: nobody reads it
    sees = (has_key[:, None, :] & (distance <= reach)) | (queries >= ends)[:, :, None]
    within = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    first_chunks = np.repeat((np.cumsum(counts) - counts) * _CHUNK, lengths)
    return {
        names.WINDOW_QUERIES: begins + np.minimum(queries, ends - 1),
        names.WINDOW_KEYS: begins + np.clip(keys, 0, ends - 1),
        names.WINDOW_MASK: np.where(sees, np.float32(0.0), _HIDDEN)[:, None],
        names.WINDOW_ROWS: first_chunks + within,
    }
