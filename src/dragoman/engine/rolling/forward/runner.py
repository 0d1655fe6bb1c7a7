"""The interface between the engine and a model: the inputs of a forward pass, and the runner's protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dragoman.engine.rolling.blocks.block_manager import CachePool


@dataclass(frozen=True, slots=True)
class BlockTables:
    """The block tables of one cache kind for a step's rows. Shapes: as in `ForwardBatch`."""

    past_lens: npt.NDArray[np.int32]
    block_indices: npt.NDArray[np.int32]
    block_indices_begins: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PictureInputs:
    """A step's inputs for pictures. Shapes: M placeholders among its T tokens, W numbers in an embedding.

    `rows` i64 [M]: the placeholders' indices among the tokens. `embeddings` f32 [M, W]. `positions` i64 [3, T]: time,
    row and column of all tokens of the step; a model with one position ignores them.
    """

    rows: npt.NDArray[np.int64]
    embeddings: npt.NDArray[np.float32]
    positions: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ForwardBatch(BlockTables):
    """The tokens of one step, flat, with the blocks of their context. The arrays are valid until the next step.

    Shapes: T = tokens of the step, S = its rows, B = the sum of their blocks, R = requested rows of logits. A row is a
    run of tokens of one sequence that attend together. Row i owns tokens [subsequence_begins[i], subsequence_begins[i +
    1]) and the blocks block_indices[block_indices_begins[i] : block_indices_begins[i + 1]], in order of position.

    `past_lens[i]` tokens precede the row's own, in the cache or in earlier rows of the same sequence. `first_rows` i64:
    the first row of each sequence; None = each has one row. `logit_indices` are positions in T, perhaps repeated; R may
    be 0. `more_tables`: of the further cache kinds, or empty if all use the first's. With a window, tables may leave
    out blocks that none of the tokens sees; `past_lens` then counts from the first block that is left, `position_ids`
    does not.

    `regimes` [T]: 1 in the long regime. `num_padding`: dummy rows that only save time (see `speculate.estimates`).
    `adapter_slots` [T]: NO_SLOT = no adapter. Source: the inputs of OpenVINO's paged-attention op.
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
    """A loaded model and its KV cache: `pools` of blocks of `block_size` slots. For one thread.

    A kind that keeps all tokens comes first. `long_context_from`: longer sequences are computed in the long regime,
    from their first token on.
    """

    block_size: int
    pools: tuple[CachePool, ...]
    vocab_size: int
    max_model_len: int
    long_context_from: int | None

    def forward(self, batch: ForwardBatch) -> npt.NDArray[np.float32]:
        """Writes the new tokens' slots; returns logits f32 [R, vocab_size], valid until the next forward."""
        ...

    def copy_blocks(self, pairs: Sequence[tuple[int, int]], kind: int = 0) -> None:
        """Copy whole blocks of one kind, (source, destination) each, in this order."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of a step. `contexts`: by cache kind, the tokens that decoding sequences read.

    `pairs`: by cache kind, the (token, seen token) pairs of pieces of prompts.
    """

    num_tokens: int
    num_rows: int
    contexts: tuple[float, ...]
    pairs: tuple[float, ...]

    @classmethod
    def of(cls, batch: ForwardBatch) -> StepWork:
        lengths = np.diff(batch.subsequence_begins)
        decodes = lengths == 1
        contexts, pairs = [], []
        for tables in (batch, *batch.more_tables):
            contexts.append(float(tables.past_lens[decodes].sum() + decodes.sum()))
            seen = lengths * (tables.past_lens + (lengths + 1) / 2)
            pairs.append(float(seen[~decodes].sum()))
        return cls(len(batch.input_ids), len(batch.logit_indices), tuple(contexts), tuple(pairs))
