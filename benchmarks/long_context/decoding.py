"""Times decode steps of the engine, and the kernels' part of them, by context and streams.

Does: put sequences of a length into a real EngineCore over a filled cache, and step it. Does not: print. Used by
`contenders`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.long_context.filled_runner import FilledRunner
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest
from dragoman.models import BLOCK_SIZE
from dragoman.types import EngineRequest, SamplingParams

_WARM_UP_STEPS = 2
SPARE_TOKENS = 64  # of an answer, more than are timed


@dataclass(frozen=True, slots=True)
class StepCost:
    """Milliseconds of a decode step of the engine, and of what the kernels take of it."""

    step_ms: float
    kernels_ms: float


def decode_cost(runner: FilledRunner, streams: int, context: int, num_steps: int, *, shares: bool = False) -> StepCost:
    """The medians of so many steps of `streams` sequences, each behind `context` tokens; `shares`: all behind the same."""
    blocks_each = -(-(context + SPARE_TOKENS) // BLOCK_SIZE)
    runner.lend(streams * blocks_each, context // BLOCK_SIZE if shares else 0)
    config = RollingConfig(max_batch_tokens=max(context, 16_384), max_num_seqs=streams, prefix_cache="off")
    core = EngineCore(runner, Sampler(runner.vocab_size), config)
    rng = np.random.default_rng(streams)
    for key in range(streams):
        prompt = tuple(rng.integers(1, 1000, context).tolist())
        core.inbox.put(
            AddRequest(key, EngineRequest(str(key), prompt, SamplingParams(temperature=0.0), SPARE_TOKENS, 0))
        )
    costs: list[StepCost] = []
    while len(costs) < _WARM_UP_STEPS + num_steps:
        begin = time.perf_counter()
        delivered = core.step()
        elapsed_s = time.perf_counter() - begin
        if runner.forward_s and len(delivered) == streams:
            costs.append(StepCost(1000 * elapsed_s, 1000 * runner.forward_s))
    core.close()
    return middle(costs[_WARM_UP_STEPS:])


def middle(costs: Sequence[StepCost]) -> StepCost:
    """The medians."""
    return StepCost(
        statistics.median(cost.step_ms for cost in costs), statistics.median(cost.kernels_ms for cost in costs)
    )
