"""The batch of one step: as the scheduler plans it, and as the flat arrays of a runner. On the engine thread only.

A step's tokens of a prompt form one row. Every other token, including drafts and tokens that are computed again, is a
separate row: rows of several tokens go through another attention kernel, with other bits. If all rows of a sequence are
single tokens, they list the same blocks and see each other's keys and values. The scheduler never puts a prompt's row
into the same step as another row of its sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dragoman.engine.rolling.blocks.block_manager import BlockManager
from dragoman.engine.rolling.blocks.block_pools import BlockPools, Copies
from dragoman.engine.rolling.forward.runner import BlockTables, ForwardBatch, PictureInputs
from dragoman.engine.rolling.pacing import Room, StepParts
from dragoman.engine.rolling.sequence import NO_SLOT, Sequence

_MIN_ROWS = 256
_MIN_BLOCKS = 4096


# --- the plan ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ScheduledSequence:
    """The part of one sequence in a step. `num_prompt_rows`: rows of logits for prompt log-probabilities.

    `num_sample_rows`: 0 while tokens remain; one per sequence of the group if the prompt's end forks it; else one per
    draft token and one more.
    """

    sequence: Sequence
    num_new_tokens: int
    num_sample_rows: int
    num_prompt_rows: int = 0


@dataclass(slots=True)
class ScheduledBatch:
    """One step's work. `copies`: blocks to copy before the forward."""

    entries: list[ScheduledSequence] = field(default_factory=list)
    copies: Copies = field(default_factory=list)
    num_tokens: int = 0
    num_prompt_rows: int = 0
    num_preempted: int = 0
    num_prefill_tokens: int = 0  # tokens of entries that do not decode
    prefill_budget: int | None = None  # limits these, beside the limit on all tokens; None = no limit
    num_padding: int = 0  # dummy rows of the step
    background: Room | None = None  # room left for the background; None = no limit
    background_tokens: int = 0  # of prompts in the background, among those above
    background_rows: int = 0  # of decoding sequences in the background
    begin_s: float = 0.0  # when it was planned, by the scheduler's clock

    def __bool__(self) -> bool:
        return bool(self.entries)

    @property
    def num_decode_rows(self) -> int:
        return self.num_tokens - self.num_prefill_tokens

    def add(self, entry: ScheduledSequence) -> None:
        self.entries.append(entry)
        self.num_tokens += entry.num_new_tokens
        is_decoding = entry.sequence.is_decoding
        if not is_decoding:
            self.num_prefill_tokens += entry.num_new_tokens
        self.num_prompt_rows += entry.num_prompt_rows
        if entry.sequence.group.is_background:
            self.background_rows += entry.num_new_tokens if is_decoding else 0
            self.background_tokens += 0 if is_decoding else entry.num_new_tokens
            if self.background is not None:
                self.background.take(entry.num_new_tokens, is_decoding=is_decoding)

    @property
    def parts(self) -> StepParts:
        return StepParts(
            self.num_decode_rows - self.background_rows,
            self.num_prefill_tokens - self.background_tokens,
            self.background_rows,
            self.background_tokens,
        )


# --- the arrays -------------------------------------------------------------------------------------------------------


class _TableBuffers:
    def __init__(self, max_sequences: int) -> None:
        self.past_lens = np.zeros(max_sequences, dtype=np.int32)
        self.block_indices_begins = np.zeros(max_sequences + 1, dtype=np.int32)
        self.block_indices = np.zeros(_MIN_BLOCKS, dtype=np.int32)

    def ensure_blocks(self, num_blocks: int) -> npt.NDArray[np.int32]:
        self.block_indices = _grown(self.block_indices, num_blocks)
        return self.block_indices


class BatchBuffers:
    """Memory for a step's arrays. `may_have_extras`: a request with pictures or an adapter has come."""

    def __init__(
        self, max_batch_tokens: int, max_model_len: int, num_kinds: int = 1, *, has_regimes: bool = False
    ) -> None:
        size = max_batch_tokens
        self.input_ids = np.zeros(size, dtype=np.int64)
        self.position_ids = np.zeros(size, dtype=np.int64)
        self.subsequence_begins = np.zeros(size + 1, dtype=np.int32)
        self.tables = [_TableBuffers(size) for _ in range(num_kinds)]
        self.logit_indices = np.zeros(_MIN_ROWS, dtype=np.int64)
        self.has_regimes = has_regimes
        self.may_have_extras = False
        self.arange = np.arange(max(max_model_len, max_batch_tokens), dtype=np.int64)

    def ensure_rows(self, num_rows: int) -> npt.NDArray[np.int64]:
        self.logit_indices = _grown(self.logit_indices, num_rows)
        return self.logit_indices


def build_forward_batch(batch: ScheduledBatch, blocks: BlockPools, buffers: BatchBuffers) -> ForwardBatch:
    """The runtime inputs of a step, as slices of `buffers`, valid until the next one.

    Rows of logits: first those to sample from, in the order of the entries, then those for prompt log-probabilities.
    """
    ids, positions, begins = buffers.input_ids, buffers.position_ids, buffers.subsequence_begins
    rows = _rows(batch)
    token, max_context_len = 0, 0
    # Only this loop and those in `_rows` and `_fill_tables` run over the rows of a batch; inside are only slices.
    for number, (sequence, begin, end) in enumerate(rows, 1):
        if end - begin == 1:
            ids[token] = sequence.token_ids[begin]
            positions[token] = begin
            token += 1
        else:
            following = token + end - begin
            ids[token:following] = sequence.token_ids[begin:end]
            positions[token:following] = buffers.arange[begin:end]
            token = following
        begins[number] = token
        if end > max_context_len:
            max_context_len = end
    first, *others = [
        _fill_tables(rows, manager, tables) for manager, tables in zip(blocks.managers, buffers.tables, strict=True)
    ]
    return ForwardBatch(
        input_ids=ids[:token],
        position_ids=positions[:token],
        past_lens=first.past_lens,
        subsequence_begins=begins[: len(rows) + 1],
        block_indices=first.block_indices,
        block_indices_begins=first.block_indices_begins,
        logit_indices=_fill_logit_indices(batch, buffers),
        max_context_len=max_context_len,
        more_tables=tuple(others),
        regimes=_regimes(batch) if buffers.has_regimes else None,
        adapter_slots=_adapter_slots(batch) if buffers.may_have_extras else None,
        pictures=_pictures(batch) if buffers.may_have_extras else None,
        first_rows=_first_rows(rows) if len(rows) != len(batch.entries) else None,
        num_padding=batch.num_padding,
    )


class _Row(NamedTuple):
    """Tokens of a sequence that attend together: positions `begin` to `end`."""

    sequence: Sequence
    begin: int
    end: int


def _rows(batch: ScheduledBatch) -> list[_Row]:
    rows = []
    for entry in batch.entries:
        sequence = entry.sequence
        begin = sequence.num_computed_tokens
        end = begin + entry.num_new_tokens
        decoded = sequence.num_prompt_tokens
        if begin < decoded:
            rows.append(_Row(sequence, begin, min(decoded, end)))
            begin = decoded
        for position in range(begin, end):
            rows.append(_Row(sequence, position, position + 1))
    return rows


def _first_rows(rows: list[_Row]) -> npt.NDArray[np.int64]:
    owners = np.array([row.sequence.sequence_id for row in rows], dtype=np.int64)
    return np.flatnonzero(np.diff(owners, prepend=-1))


def _pictures(batch: ScheduledBatch) -> PictureInputs | None:
    if all(entry.sequence.group.pictures is None for entry in batch.entries):
        return None
    rows, embeddings, positions = [], [], []
    token = 0
    for entry in batch.entries:
        pictures, begin = entry.sequence.group.pictures, entry.sequence.num_computed_tokens
        end = begin + entry.num_new_tokens
        if pictures is None:
            positions.append(np.broadcast_to(np.arange(begin, end, dtype=np.int64), (3, end - begin)))
        else:
            positions.append(pictures.positions_between(begin, end))
            for places, vectors in pictures.between(begin, end):
                rows.append(places + (token - begin))
                embeddings.append(vectors)
        token += entry.num_new_tokens
    return PictureInputs(
        np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64),
        np.concatenate(embeddings) if embeddings else np.zeros((0, 0), dtype=np.float32),
        np.concatenate(positions, axis=1),
    )


def _adapter_slots(batch: ScheduledBatch) -> npt.NDArray[np.int64] | None:
    uses = [entry.sequence.group.adapter for entry in batch.entries]
    if not any(uses):
        return None
    slots = np.array([NO_SLOT if use is None else use.slot for use in uses], dtype=np.int64)
    return np.repeat(slots, [entry.num_new_tokens for entry in batch.entries])


def _regimes(batch: ScheduledBatch) -> npt.NDArray[np.int64]:
    flags = np.array([entry.sequence.is_long for entry in batch.entries], dtype=np.int64)
    return np.repeat(flags, [entry.num_new_tokens for entry in batch.entries])


def _fill_tables(rows: list[_Row], manager: BlockManager, buffers: _TableBuffers) -> BlockTables:
    past_lens, begins, block_indices = buffers.past_lens, buffers.block_indices_begins, buffers.block_indices
    size, has_window = manager.block_size, manager.window > 0
    num_blocks = 0
    for number, (sequence, row_begin, row_end) in enumerate(rows):
        # With a window, all positions count from the first block that is left.
        passed = manager.num_passed(sequence.sequence_id) * size if has_window else 0
        table = manager.table(sequence.sequence_id)[: -(-(row_end - passed) // size)]
        begin = num_blocks
        num_blocks += len(table)
        if num_blocks > len(block_indices):
            block_indices = buffers.ensure_blocks(num_blocks)
        block_indices[begin:num_blocks] = table
        past_lens[number] = row_begin - passed
        begins[number + 1] = num_blocks
    return BlockTables(past_lens[: len(rows)], block_indices[:num_blocks], begins[: len(rows) + 1])


def _fill_logit_indices(batch: ScheduledBatch, buffers: BatchBuffers) -> npt.NDArray[np.int64]:
    num_sample_rows = sum(entry.num_sample_rows for entry in batch.entries)
    indices = buffers.ensure_rows(num_sample_rows + batch.num_prompt_rows)
    sample_row, prompt_row, token = 0, num_sample_rows, 0
    for entry in batch.entries:
        last = token + entry.num_new_tokens - 1
        num_rows, num_drafts = entry.num_sample_rows, entry.sequence.num_draft_tokens
        if num_rows:
            # Either the last 1 + drafts positions, or the prompt's last position once per forked sequence.
            indices[sample_row : sample_row + num_rows] = (
                buffers.arange[last - num_drafts : last + 1] if num_drafts else last
            )
            sample_row += num_rows
        if entry.num_prompt_rows:
            first = token + _first_prompt_row(entry)
            indices[prompt_row : prompt_row + entry.num_prompt_rows] = range(first, first + entry.num_prompt_rows)
            prompt_row += entry.num_prompt_rows
        token += entry.num_new_tokens
    return indices[:prompt_row]


def _first_prompt_row(entry: ScheduledSequence) -> int:
    """The first of the entry's new tokens whose successor needs a log-probability."""
    collected = entry.sequence.group.prompt_logprobs
    assert collected is not None
    return len(collected) - 1 - entry.sequence.num_computed_tokens


def _grown(buffer: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """The buffer itself, or one at least twice as large with the same content at its front."""
    if size <= len(buffer):
        return buffer
    larger = np.zeros(max(size, 2 * len(buffer)), dtype=buffer.dtype)
    larger[: len(buffer)] = buffer
    return larger
