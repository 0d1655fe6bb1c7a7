"""Keeps what convolutions look back at, in the blocks that hold the same tokens' keys and values.

Does: own the table of rows; tell a step's tokens where they find those before them, and which rows the step leaves. Does
not: compute (the graph does, see `models.blocks.convolution`), or own blocks. Used by the runner, on the engine thread only.

A block keeps the rows of its last tokens, as many as `rows_per_block` says, each in the slot of its position modulo that
number. Whatever happens to blocks is right for rows too: sharing, copying or finding a block brings its rows, and a
sequence that goes on behind a full block finds the last ones. A step overwrites what it looked back at, so it cannot be
computed a second time, unless a block keeps all its tokens' rows. The sequences of a step must not share unfinished blocks.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from dragoman.engine.rolling.forward.runner import BlockTables, ForwardBatch
from dragoman.models import LoadedModel
from dragoman.models.blocks.convolution import PAST_ROWS, ROWS_BEFORE, ROWS_TO_KEEP
from dragoman.models.kept_rows import rows_per_block
from dragoman.models.storage.pages import forget_pages

Array = np.ndarray[Any, Any]


class ConvolutionRows:
    """The rows of `num_blocks` blocks. `inputs` before each step, `keep` after it."""

    def __init__(self, loaded: LoadedModel, num_blocks: int) -> None:
        """Allocates the table; its pages cost nothing until they are written."""
        facts = loaded.facts
        self._block_size = loaded.profile.block_size
        self._reach = facts.convolution_reach
        self._num_slots = rows_per_block(facts, loaded.options, self._block_size)
        stored = ml_dtypes.bfloat16 if loaded.profile.keeps_bf16 else np.float32
        self._table: Array = np.empty((num_blocks * self._num_slots, facts.convolution_width), dtype=stored)
        self._destinations = np.zeros(0, dtype=np.int64)

    def inputs(self, batch: ForwardBatch, tables: BlockTables) -> dict[str, Array]:
        """The graph's inputs for this step, by their names; `ConvolutionInputs` says what they mean.

        `tables`: of the kind whose blocks keep rows.
        """
        begins, tables, past = _of_sequences(batch, tables)
        lengths = np.diff(begins)
        owners = np.repeat(np.arange(len(lengths)), lengths)
        tokens = np.arange(len(owners))
        offsets = tokens - begins[owners]
        num_past = len(lengths) * self._reach
        values = {PAST_ROWS: self._past_rows(past, tables)}
        for back in range(1, self._reach + 1):
            # The row of position past - n of sequence s is number s * reach + n - 1 of the past rows.
            is_past = offsets < back
            values[f"{ROWS_BEFORE}.{back}"] = np.where(
                is_past, owners * self._reach + back - 1 - offsets, num_past + tokens - back
            )
        positions = tables.past_lens[owners] + offsets  # in the tables
        places = positions % self._block_size
        # A later token of the step takes the slot, if it is in the same block.
        is_last = (offsets + self._num_slots >= lengths[owners]) | (places + self._num_slots >= self._block_size)
        values[ROWS_TO_KEEP] = kept = np.flatnonzero(is_last)
        self._destinations = self._slots(tables, owners[kept], positions[kept])
        return values

    def keep(self, rows: Array) -> None:
        """Put the rows that the step computed into its blocks. Shape: f32 [K, width], in the order of `inputs`."""
        self._table[self._destinations] = rows

    def copy_block(self, source: int, destination: int) -> None:
        """Copy a block's rows."""
        blocks = self._table.reshape(-1, self._num_slots, self._table.shape[1])
        blocks[destination] = blocks[source]

    def rows_of_bytes(self) -> Array:
        """The table's memory, u8 [blocks, bytes]."""
        return self._table.reshape(-1, self._num_slots * self._table.shape[1]).view(np.uint8)

    def forget(self) -> None:
        """Give the table's memory back; nothing can be computed afterwards."""
        forget_pages(self._table)

    def _past_rows(self, past: Array, tables: BlockTables) -> Array:
        """The rows before each sequence's tokens, the nearest first, zeros before its beginning: [S * reach, width]."""
        back = np.arange(1, self._reach + 1)
        is_there = (past[:, None] >= back).reshape(-1)
        positions = (tables.past_lens[:, None] - back).reshape(-1)
        owners = np.repeat(np.arange(len(past)), self._reach)
        slots = self._slots(tables, owners, np.maximum(positions, 0))
        rows = self._table[slots].astype(np.float32)
        rows[~is_there] = 0
        return rows

    def _slots(self, tables: BlockTables, owners: Array, positions: Array) -> Array:
        """The slots of the rows at these positions in the tables of these sequences."""
        blocks = tables.block_indices[tables.block_indices_begins[owners] + positions // self._block_size]
        slots: Array = blocks.astype(np.int64) * self._num_slots + positions % self._block_size % self._num_slots
        return slots


def _of_sequences(batch: ForwardBatch, tables: BlockTables) -> tuple[Array, BlockTables, Array]:
    """The first token of each sequence in the step, its table, and the tokens before it: all its rows taken as one.

    A convolution sums alike however many tokens it is given, so a sequence's tokens need not be rows of their own here.
    """
    begins = batch.subsequence_begins.astype(np.int64)
    first = batch.first_rows
    if first is None:
        return begins, tables, batch.past_lens
    last = np.append(first[1:], len(batch.past_lens)) - 1  # whose table is the longest
    listed = [
        tables.block_indices[tables.block_indices_begins[row] : tables.block_indices_begins[row + 1]] for row in last
    ]
    block_begins = np.cumsum([0, *map(len, listed)])
    whole = BlockTables(tables.past_lens[first], np.concatenate(listed), block_begins)
    return np.append(begins[first], begins[-1]), whole, batch.past_lens[first]
