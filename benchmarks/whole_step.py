"""Whole engine steps without the forward: inbox, schedule, batch build, sample, update, outputs.

Does: drive a real EngineCore over a runner that answers at once with prepared logits. Does not: load a model, print.
Used by step_cost.py, whose table and JSON line it joins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dragoman.engine.rolling.blocks.block_manager import CachePool
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest
from dragoman.types import EngineRequest, SamplingParams

BLOCK_SIZE = 32  # as on the CPU
MAX_MODEL_LEN = 8192


class PreparedRunner:
    """A ModelRunner whose forward costs nothing that is timed: its logits are renewed by `reset`, between the steps."""

    def __init__(self, logits: npt.NDArray[np.float32], num_blocks: int) -> None:
        self.block_size = BLOCK_SIZE
        self.pools: tuple[CachePool, ...] = (CachePool(num_blocks),)
        self.vocab_size = logits.shape[1]
        self.max_model_len = MAX_MODEL_LEN
        self.long_context_from: int | None = None
        self._source = logits
        self._logits = logits.copy()

    def reset(self) -> None:
        """Undo what the sampler did to the logits."""
        np.copyto(self._logits, self._source)

    def forward(self, batch: ForwardBatch) -> npt.NDArray[np.float32]:
        """The prepared rows, as many as the batch wants."""
        return self._logits[: len(batch.logit_indices)]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]], kind: int = 0) -> None:
        """There is no cache."""

    def close(self) -> None:
        """There is nothing to release."""


def step_trial(
    logits: npt.NDArray[np.float32], params: SamplingParams, num_prompt_tokens: int, num_generated_tokens: int
) -> tuple[Callable[[], None], Callable[[], object]]:
    """(reset, run): `run` is one step in which every row of `logits` decodes, in the middle of its answer."""
    rows, vocab_size = logits.shape
    blocks_each = -(-MAX_MODEL_LEN // BLOCK_SIZE)
    runner = PreparedRunner(logits, rows * blocks_each)
    config = RollingConfig(max_batch_tokens=max(4096, rows * num_prompt_tokens), max_num_seqs=rows, prefix_cache="off")
    core = EngineCore(runner, Sampler(vocab_size), config)
    rng = np.random.default_rng(1)
    for row in range(rows):
        prompt = tuple(rng.integers(1, vocab_size, num_prompt_tokens).tolist())
        request = EngineRequest(str(row), prompt, params, MAX_MODEL_LEN - num_prompt_tokens, seed=row)
        core.inbox.put(AddRequest(row, request))
    for _ in range(num_generated_tokens):
        runner.reset()
        core.step()
    return runner.reset, core.step


def all_penalties() -> dict[str, Any]:
    """Every penalty that a request can ask for at once."""
    return {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.2}
