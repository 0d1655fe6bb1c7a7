"""A runner whose cache is full of keys and values already, so that sequences of any length decode without a prefill.

Does: build a model of random weights, fill its cache with copies of a short prompt's blocks, run decode steps on the real
kernels and time them. Does not: compute prompts: a step that has any gets logits of zeros. Used by `decoding` and `prompts`.

More blocks are lent than there are where memory is short: block n is then block n modulo their number. The streams that
share a block are gigabytes apart, so that it has left the caches of the processor in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.serving.model import BenchShape, model_config
from benchmarks.shapes import RandomSource
from dragoman.engine.rolling.blocks.block_manager import CachePool
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.models import BLOCK_SIZE, LoadedModel, ModelOptions
from dragoman.models.families import read_model
from dragoman.models.loader import compile_source

MAX_POSITION = 32_768
_FIRST_BLOCKS = 4  # of a prompt that is computed; the others are copies


def load(kv_type: Any, num_layers: int | None = None) -> LoadedModel:
    """The shape that speed is measured on, or a model of fewer such layers. Raises: ModelError."""
    shape = BenchShape(max_position=MAX_POSITION)
    model = read_model(model_config(replace(shape, num_layers=num_layers or shape.num_layers)))
    return compile_source(model, RandomSource(), ModelOptions(kv_type=kv_type))


def prompt_batch(num_past: int, num_tokens: int) -> ForwardBatch:
    """A piece of the only sequence's prompt, in the first blocks."""
    end = num_past + num_tokens
    num_blocks = -(-end // BLOCK_SIZE)
    return ForwardBatch(
        input_ids=np.random.default_rng(num_past).integers(1, 1000, num_tokens),
        position_ids=np.arange(num_past, end, dtype=np.int64),
        past_lens=np.array([num_past], dtype=np.int32),
        subsequence_begins=np.array([0, num_tokens], dtype=np.int32),
        block_indices=np.arange(num_blocks, dtype=np.int32),
        block_indices_begins=np.array([0, num_blocks], dtype=np.int32),
        logit_indices=np.array([num_tokens - 1], dtype=np.int64),
        max_context_len=end,
    )


class FilledRunner:
    """A ModelRunner over a full cache of `num_blocks`. `forward_s`: what the last decode step took on the kernels."""

    def __init__(self, loaded: LoadedModel, num_blocks: int) -> None:
        self.inner = OpenVinoRunner(loaded, num_blocks)
        self._num_blocks = self._num_used = num_blocks
        self.block_size, self.vocab_size = self.inner.block_size, self.inner.vocab_size
        self.max_model_len = self.inner.max_model_len
        self.long_context_from = self.inner.long_context_from
        self.pools: tuple[CachePool, ...] = self.inner.pools
        self.forward_s = 0.0
        self.inner.forward(prompt_batch(0, _FIRST_BLOCKS * BLOCK_SIZE))
        self.inner.copy_blocks([(block % _FIRST_BLOCKS, block) for block in range(_FIRST_BLOCKS, num_blocks)])

    def lend(self, num_blocks: int, num_used: int | None = None) -> None:
        """Offer so many blocks to who comes next, and use only the first `num_used` of the cache for them; None = all."""
        self.pools = (CachePool(num_blocks),)
        self._num_used = min(num_used or self._num_blocks, self._num_blocks)

    def forward(self, batch: ForwardBatch) -> npt.NDArray[np.float32]:
        """The kernels' logits of a step that decodes alone."""
        num_rows = len(batch.logit_indices)
        if len(batch.input_ids) > len(batch.past_lens):
            self.forward_s = 0.0
            return np.zeros((num_rows, self.vocab_size), dtype=np.float32)
        batch = replace(batch, block_indices=batch.block_indices % np.int32(self._num_used))
        begin = perf_counter()
        logits = self.inner.forward(batch)
        self.forward_s = perf_counter() - begin
        return logits

    def copy_blocks(self, pairs: Sequence[tuple[int, int]], kind: int = 0) -> None:
        """Nobody shares blocks here."""
        raise NotImplementedError("no sequence forks")

    def close(self) -> None:
        """Release the model and the cache."""
        self.inner.close()
