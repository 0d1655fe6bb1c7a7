"""The interface between the engine and a model: the inputs of a forward pass, and the runner's protocol.

Does: define `ForwardBatch` (flat, paged inputs of one step) and the `ModelRunner` protocol. Does not: contain a runner,
schedule, or sample. Built by `batch`, used by a runner, on the engine thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dragoman.engine.rolling.blocks.block_manager import CachePool


@dataclass(frozen=True, slots=True)
class BlockTables:
    """The block tables of one cache kind's layers for a step's rows. Shapes: as in `ForwardBatch`."""

    past_lens: npt.NDArray[np.int32]
    block_indices: npt.NDArray[np.int32]
    block_indices_begins: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PictureInputs:
    """A step's inputs for pictures. Shapes: M placeholders among its T tokens, W numbers in an embedding.

    `rows` i64 [M]: the placeholders' indices among the tokens. `embeddings` f32 [M, W]. `positions` i64 [3, T]: time, row
    and column of all tokens of the step; a model with one position ignores them.
    """

    rows: npt.NDArray[np.int64]
    embeddings: npt.NDArray[np.float32]
    positions: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ForwardBatch(BlockTables):
    """The tokens of one step, flat, with the blocks of their context. The arrays are valid until the next step.

    Shapes: T = tokens of the step, S = its rows, B = the sum of their blocks, R = requested rows of logits.

    A row is a run of tokens of one sequence that attend together. Row i owns tokens [subsequence_begins[i],
    subsequence_begins[i + 1]) and the blocks block_indices[block_indices_begins[i] : block_indices_begins[i + 1]], in order
    of position. Position p is in slot p % block_size of the row's block p // block_size.

    `past_lens[i]` tokens precede the row's own, in the cache or in earlier rows: single-token rows of one sequence follow
    each other and share their blocks. `first_rows` i64: the first row of each sequence; None = each has one row.
    `logit_indices` are positions in T; a position may be listed several times, and R may be 0.

    These tables are those of the first cache kind; `more_tables` are those of the others, or empty if all kinds use the
    first's. With a window, tables may leave out whole blocks that none of the tokens sees. Then `past_lens` and the places
    of blocks count from the first block that is left (`position_ids` do not).

    `regimes`: for each token, 1 if its sequence is in the long regime, else 0; None = all are 0. `num_padding`: dummy rows
    to compute as well, only to save time (see `speculate.row_costs`). `pictures` None = no sequence has any.
    `adapter_slots`: for each token, the slot of its sequence's adapter, -1 = none; None = no sequence has an adapter.
    Source: the inputs of OpenVINO's paged-attention op.
    """

    input_ids: npt.NDArray[np.int64]
    position_ids: npt.NDArray[np.int64]
    subsequence_begins: npt.NDArray[np.int32]
    logit_indices: npt.NDArray[np.int64]
    max_context_len: int
    more_tables: tuple[BlockTables, ...] = ()
    regimes: npt.NDArray[np.int64] | None = None
    pictures: PictureInputs | None = None
    adapter_slots: npt.NDArray[np.int64] | None = None
    first_rows: npt.NDArray[np.int64] | None = None
    num_padding: int = 0


class ModelRunner(Protocol):
    """A loaded model and its KV cache: `pools` of blocks of `block_size` slots, one for each cache kind. For one thread.

    A kind that keeps all tokens comes first. `long_context_from`: sequences of more tokens are computed in the long regime,
    from their first token on; None = there is no long regime.
    """

    block_size: int
    pools: tuple[CachePool, ...]
    vocab_size: int
    max_model_len: int
    long_context_from: int | None

    def forward(self, batch: ForwardBatch) -> npt.NDArray[np.float32]:
        """Logits f32 [R, vocab_size], one row per entry of `batch.logit_indices`; writes the new tokens' slots.

        The rows are valid until the next forward; the caller may overwrite them.
        """
        ...

    def copy_blocks(self, pairs: Sequence[tuple[int, int]], kind: int = 0) -> None:
        """Copy whole blocks of one kind, (source, destination) each, as if in this order.

        A source may be a later pair's destination.
        """
        ...

    def close(self) -> None:
        """Release the model and the cache."""
        ...
