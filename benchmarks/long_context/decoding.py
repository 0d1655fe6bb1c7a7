"""Times decode steps of the engine, and the kernels' part of them: by context, streams and type of the cache.

Does: put sequences of a length into a real EngineCore over a filled cache, and step it; the same for short sequences in many
streams, from their prompts on. Does not: print. Used by `__main__`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.long_context.filled_runner import FilledRunner, load
from benchmarks.long_context.steps import TimedRunner
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.runner import ModelRunner
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest
from dragoman.models import BLOCK_SIZE, LoadedModel
from dragoman.types import EngineRequest, SamplingParams

_WARM_UP_STEPS = 2
SPARE_TOKENS = 64  # of an answer, more than are timed
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class StepCost:
    """Milliseconds of a decode step of the engine, and of what the kernels take of it."""

    step_ms: float
    kernels_ms: float


def filled_runner(kv_type: str, memory_gb: float, num_layers: int | None = None) -> FilledRunner:
    """One with a cache of that type and size."""
    loaded = load(kv_type, num_layers)
    return FilledRunner(loaded, int(memory_gb * _GIB / sum(loaded.block_bytes)))


def decode_cost(runner: FilledRunner, streams: int, context: int, num_steps: int, *, shares: bool = False) -> StepCost:
    """The medians of so many steps of `streams` sequences, each behind `context` tokens; `shares`: all behind the same."""
    blocks_each = -(-(context + SPARE_TOKENS) // BLOCK_SIZE)
    runner.lend(streams * blocks_each, blocks_each if shares else None)
    config = RollingConfig(max_batch_tokens=max(context, 16_384), max_num_seqs=streams, prefix_cache="off")
    core = _core(runner, config, streams, context, SPARE_TOKENS)
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


@dataclass(frozen=True, slots=True)
class LoopCost:
    """A number of requests at once, from their prompts to their ends. Seconds; `rows`: of an average decode step."""

    tokens_per_s: float
    prompt_steps: int
    prompt_s: float
    decode_steps: int
    decode_s: float
    host_s: float
    rows: float


def loop_cost(loaded: LoadedModel, streams: int, prompt_tokens: int, output_tokens: int) -> LoopCost:
    """What the engine makes of it, with the server's default limits but for the number of streams."""
    runner = TimedRunner(loaded, streams * (-(-(prompt_tokens + output_tokens) // BLOCK_SIZE)))
    config = RollingConfig(
        max_batch_tokens=512,
        max_num_seqs=streams,
        prefix_cache="off",
        max_slowdown=2.5,
    )
    core = _core(runner, config, streams, prompt_tokens, output_tokens)
    begin = time.perf_counter()
    while core.has_work() or not runner.steps:
        core.step()
    elapsed_s = time.perf_counter() - begin
    core.close()
    runner.close()
    prompts = [step.seconds for step in runner.steps if step.has_prompts]
    decodes = [step for step in runner.steps if not step.has_prompts]
    decode_s = sum(step.seconds for step in decodes)
    return LoopCost(
        tokens_per_s=streams * output_tokens / elapsed_s,
        prompt_steps=len(prompts),
        prompt_s=sum(prompts),
        decode_steps=len(decodes),
        decode_s=decode_s,
        host_s=elapsed_s - sum(prompts) - decode_s,
        rows=statistics.mean(step.num_rows for step in decodes) if decodes else 0.0,
    )


def _core(
    runner: ModelRunner, config: RollingConfig, streams: int, prompt_tokens: int, output_tokens: int
) -> EngineCore:
    """With a random prompt for each stream."""
    core = EngineCore(runner, Sampler(runner.vocab_size), config)
    rng = np.random.default_rng(streams)
    for key in range(streams):
        prompt = tuple(rng.integers(1, 1000, prompt_tokens).tolist())
        core.inbox.put(
            AddRequest(key, EngineRequest(str(key), prompt, SamplingParams(temperature=0.0), output_tokens, 0))
        )
    return core
