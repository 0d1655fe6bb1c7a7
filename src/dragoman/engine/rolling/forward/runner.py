"""The seam between the engine and a model: what one forward pass takes, and who runs it.

Does: define `ForwardBatch` (flat, paged inputs of one step) and the `ModelRunner` protocol. Does not: contain a runner,
schedule, or sample. Built by `batch`, consumed by a runner, on the engine thread only.
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
    """Tables in which the layers of one cache kind find the context of a step's rows. Shapes: as in `ForwardBatch`."""

    past_lens: npt.NDArray[np.int32]
    block_indices: npt.NDArray[np.int32]
    block_indices_begins: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PictureInputs:
    """Inputs that pictures add to a step. Shapes: M placeholders among its T tokens, W numbers in an embedding.

    `rows` i64 [M]: the placeholders' places among the tokens. `embeddings` f32 [M, W]. `positions` i64 [3, T]: by time, row
    and column, for all tokens of the step; a model with one position passes them over.
    """

    rows: npt.NDArray[np.int64]
    embeddings: npt.NDArray[np.float32]
    positions: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ForwardBatch(BlockTables):
    """The tokens of one step, flat, with the blocks that hold their context. The arrays are valid until the next step.

    Shapes: T = tokens of the step, S = its rows, B = the sum of their blocks, R = rows of logits wanted.
    A row is a run of tokens of one sequence that attend together. Row i owns tokens [subsequence_begins[i],
    subsequence_begins[i + 1]) and the blocks block_indices[block_indices_begins[i] : block_indices_begins[i + 1]], in order
    of position: position p lives in slot p % block_size of its block p // block_size. Before its own tokens come
    `past_lens[i]` others, in the cache or in the rows before it: several rows of one sequence, of a token each, follow each
    other, and share their blocks. `first_rows` i64: the first row of each sequence; None = each has one.
    `logit_indices` are positions in T; the same position may be listed several times, R may be 0.

    These tables are those of the first cache kind; `more_tables` are the others', or empty: then they read these too. Of a
    kind with a window, tables may leave out whole blocks that none of the tokens sees: then `past_lens` and the places of
    blocks count from the first block that is there (`position_ids` do not).
    `regimes`: for each token, whether its sequence is in the long regime (1) or not (0); None = none is.
    `num_padding`: rows that nobody reads, to be computed beside these; only for time (see `speculate.row_costs`).
    `pictures` None = no sequence has any. `adapter_slots`: for each token, where the adapter of its sequence lies, -1 = it
    has none; None = no sequence has any.
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
    """A loaded model and its KV cache: `pools` of blocks of `block_size` slots, one for each cache kind. Used by one thread.

    If any kind keeps all tokens, it is the first. `long_context_from`: sequences of more tokens are computed in another
    regime, from their first token on; None = in the same.
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
