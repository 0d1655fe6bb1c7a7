"""A runner whose cache is full before anybody has computed a prompt: where contexts are long, prompts take most of the time.

Does: load the model that speed is measured on; compute a prompt of some blocks and copy them to all others. Prompts are not
computed; steps that only decode run on the real kernels and are timed. Does not: measure more. Used by `contenders`.

Where sequences need more blocks than there are, several of them name the same ones. The cache is far larger than the
processor's, so that its bytes come from memory all the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.serving.model import BenchShape, model_config
from benchmarks.shapes import RandomSource
from dragoman.engine.rolling.blocks.block_manager import CachePool, blocks_for, first_visible_block
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.models import BLOCK_SIZE, LoadedModel, ModelOptions
from dragoman.models.families import read_model
from dragoman.models.loader import compile_source

MAX_POSITION = 32_768
_FIRST_BLOCKS = 4  # of a prompt that is computed; the others are copies
_WARM_UP_STEPS = 2


def load(kv_type: Any, num_layers: int | None = None, kernels: Any = "auto") -> LoadedModel:
    """The shape that speed is measured on, or a model of fewer such layers. Raises: ModelError."""
    shape = BenchShape(max_position=MAX_POSITION)
    model = read_model(model_config(replace(shape, num_layers=num_layers or shape.num_layers)))
    return compile_source(model, RandomSource(), ModelOptions(kv_type=kv_type, kernels=kernels))


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


def decode_batch(pool: CachePool, streams: int, context: int) -> ForwardBatch:
    """A step of so many sequences whose last token is the `context`-th, of a model whose layers share that pool."""
    first = first_visible_block(context - 1, pool.window, BLOCK_SIZE)
    each, rows = blocks_for(context, BLOCK_SIZE) - first, np.arange(streams + 1)
    return ForwardBatch(
        input_ids=np.full(streams, 3, dtype=np.int64),
        position_ids=np.full(streams, context - 1, dtype=np.int64),
        past_lens=np.full(streams, context - 1 - first * BLOCK_SIZE, dtype=np.int32),
        subsequence_begins=rows.astype(np.int32),
        block_indices=(np.arange(streams * each) % pool.num_blocks).astype(np.int32),
        block_indices_begins=(rows * each).astype(np.int32),
        logit_indices=rows[:-1],
        max_context_len=context,
    )


def step_ms(runner: OpenVinoRunner, streams: int, context: int, num_steps: int) -> float:
    """The median of so many bare steps, in which every sequence's last token is the `context`-th."""
    batch, times = decode_batch(runner.pools[0], streams, context), []
    for _ in range(_WARM_UP_STEPS + num_steps):
        begin = perf_counter()
        runner.forward(batch)
        times.append(1000 * (perf_counter() - begin))
    return statistics.median(times[_WARM_UP_STEPS:])


def fill(runner: OpenVinoRunner) -> None:
    """Compute a short prompt, and copy its blocks to all others."""
    runner.forward(prompt_batch(0, _FIRST_BLOCKS * BLOCK_SIZE))
    runner.copy_blocks([(block % _FIRST_BLOCKS, block) for block in range(_FIRST_BLOCKS, runner.pools[0].num_blocks)])


class FilledRunner:
    """A ModelRunner over a full cache of `num_blocks`. `forward_s`: what the last decode step took on the kernels."""

    def __init__(self, loaded: LoadedModel, num_blocks: int) -> None:
        self.inner = OpenVinoRunner(loaded, num_blocks)
        self._num_blocks, self._num_shared = num_blocks, 0
        self.block_size, self.vocab_size = self.inner.block_size, self.inner.vocab_size
        self.max_model_len = self.inner.max_model_len
        self.long_context_from = self.inner.long_context_from
        self.pools: tuple[CachePool, ...] = self.inner.pools
        self.forward_s = 0.0
        fill(self.inner)

    def lend(self, num_blocks: int, num_shared: int = 0) -> None:
        """Offer so many blocks to who comes next; every sequence's first `num_shared` are then those of the first."""
        self.pools = (CachePool(num_blocks),)
        self._num_shared = num_shared

    def forward(self, batch: ForwardBatch) -> npt.NDArray[np.float32]:
        """The kernels' logits of a step that decodes alone."""
        num_rows = len(batch.logit_indices)
        if len(batch.input_ids) > len(batch.past_lens):
            self.forward_s = 0.0
            return np.zeros((num_rows, self.vocab_size), dtype=np.float32)
        batch = replace(batch, block_indices=self._indices(batch))
        begin = perf_counter()
        logits = self.inner.forward(batch)
        self.forward_s = perf_counter() - begin
        return logits

    def _indices(self, batch: ForwardBatch) -> npt.NDArray[np.int32]:
        found = batch.block_indices % np.int32(self._num_blocks)
        begins = batch.block_indices_begins
        for begin in begins[1:-1]:
            found[begin : begin + self._num_shared] = found[: self._num_shared]
        return found

    def copy_blocks(self, pairs: Sequence[tuple[int, int]], kind: int = 0) -> None:
        """Nobody shares blocks here."""
        raise NotImplementedError("no sequence forks")

    def close(self) -> None:
        """Release the model and the cache."""
        self.inner.close()
