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


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The tokens of one step, flat, with the blocks that hold their context. The arrays are valid until the next step.

    Shapes: T = tokens of the step, S = its sequences, B = the sum of their blocks, R = rows of logits wanted.
    Sequence i owns tokens [subsequence_begins[i], subsequence_begins[i + 1]) and the blocks
    block_indices[block_indices_begins[i] : block_indices_begins[i + 1]], in order of position: position p lives in slot
    p % block_size of its block p // block_size. `past_lens[i]` of its tokens are in the cache already.
    `logit_indices` are positions in T; the same position may be listed several times, R may be 0.
    Source: the inputs of OpenVINO's paged-attention op.
    """

    input_ids: npt.NDArray[np.int64]
    position_ids: npt.NDArray[np.int64]
    past_lens: npt.NDArray[np.int32]
    subsequence_begins: npt.NDArray[np.int32]
    block_indices: npt.NDArray[np.int32]
    block_indices_begins: npt.NDArray[np.int32]
    logit_indices: npt.NDArray[np.int64]
    max_context_len: int


class ModelRunner(Protocol):
    """A loaded model and its KV cache of `num_blocks` blocks of `block_size` slots. Used by one thread."""

    block_size: int
    num_blocks: int
    vocab_size: int
    max_model_len: int

    def forward(self, batch: ForwardBatch) -> npt.NDArray[np.float32]:
        """Logits f32 [R, vocab_size], one row per entry of `batch.logit_indices`; writes the new tokens' slots.

        The rows are valid until the next forward; the caller may overwrite them.
        """
        ...

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, destination) each, as if in this order; a source may be a later pair's destination."""
        ...

    def close(self) -> None:
        """Release the model and the cache."""
        ...
