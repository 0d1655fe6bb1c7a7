"""Simulates admission under pressure on the cache: preemptions and throughput for answers of several kinds of length.

Does: run the real scheduler and block manager with a step that costs what its rows and prompt tokens cost, in simulated
time, the same on every machine. Does not: run a model. `--assumed` 1 makes the first forecasts optimistic. From the
repository's root:

    python -m benchmarks.admission
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dragoman.engine.rolling.blocks.block_manager import CachePool
from dragoman.engine.rolling.blocks.block_pools import BlockPools
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.forward.batch import ScheduledBatch
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.schedule.scheduler import Scheduler
from dragoman.engine.rolling.sequence import AddRequest, Sequence, SequenceGroup
from dragoman.engine.rolling.stats import RollingStats
from dragoman.types import EngineRequest, FinishReason, SamplingParams

BLOCK_SIZE = 32
VOCAB_SIZE = 16
STEP_MS, DECODE_ROW_MS, PROMPT_TOKEN_MS = 10.0, 0.65, 0.6  # about 386 million parameters with AVX-512

Draw = Callable[[random.Random], int]


@dataclass(frozen=True, slots=True)
class Case:
    """Clients in a closed loop. `max_tokens` None = each request asks for the very number it will get."""

    name: str
    prompt: Draw
    output: Draw
    num_blocks: int
    max_tokens: int | None = None
    num_clients: int = 64
    num_requests: int = 512


CASES = (
    Case("all at once, 16 in, 64 out", lambda _: 16, lambda _: 64, 160, None, 128, 128),
    Case("steady, 16 in, 64 out", lambda _: 16, lambda _: 64, 160, None, 128),
    Case("steady, 128 in, 64 out", lambda _: 128, lambda _: 64, 130),
    Case(
        "lognormal", lambda dice: dice.randint(10, 300), lambda dice: 1 + int(dice.lognormvariate(4.5, 0.8)), 200, 4096
    ),
    Case("exponential", lambda dice: dice.randint(10, 300), lambda dice: 1 + int(dice.expovariate(0.01)), 200, 2048),
    Case("bimodal", lambda dice: dice.randint(10, 300), lambda dice: 10 if dice.random() < 0.8 else 600, 200, 2048),
    Case("long answers", lambda _: 50, lambda _: 600, 300, 2048, 64, 256),
)


class Simulation:
    """One case. `run` may be called once."""

    def __init__(self, case: Case, assumed_output_tokens: int) -> None:
        self._case = case
        self._dice = random.Random(0)
        self._lengths: dict[int, int] = {}
        self._sampler = Sampler(VOCAB_SIZE)
        self.stats = RollingStats()
        config = RollingConfig(max_num_seqs=128, assumed_output_tokens=assumed_output_tokens)
        self._blocks = BlockPools([CachePool(case.num_blocks)], BLOCK_SIZE)
        self._scheduler = Scheduler(config, self._blocks, self.stats)
        self.num_steps = self.num_running = self.num_prompt_tokens = 0
        self.time_ms = 0.0

    def run(self) -> None:
        """Serve all requests; afterwards the counters are those of the whole run."""
        for _ in range(self._case.num_clients):
            self._arrive()
        while self._scheduler.has_work:
            self._step(self._scheduler.schedule())

    @property
    def tokens_per_s(self) -> float:
        """Answer tokens by simulated time."""
        return 1000 * sum(self._lengths.values()) / self.time_ms

    def _arrive(self) -> None:
        key = len(self._lengths)
        if key == self._case.num_requests:
            return
        prompt = tuple(self._dice.randrange(VOCAB_SIZE) for _ in range(self._case.prompt(self._dice)))
        self._lengths[key] = self._case.output(self._dice)
        request = EngineRequest(str(key), prompt, SamplingParams(), self._case.max_tokens or self._lengths[key], seed=0)
        self._scheduler.add(SequenceGroup(AddRequest(key, request), key, self._sampler))

    def _step(self, batch: ScheduledBatch) -> None:
        self.num_steps += 1
        self.num_running += len(self._scheduler.running)
        self.num_prompt_tokens += batch.num_prefill_tokens
        self.time_ms += step_ms(batch)
        for sequence in compute(self._scheduler, batch):
            if sequence.num_generated_tokens >= self._lengths[sequence.group.key]:
                sequence.finish_reason = FinishReason.LENGTH
                self._scheduler.finish(sequence)
                self._arrive()


def step_ms(batch: ScheduledBatch) -> float:
    """How long the step takes, in simulated milliseconds."""
    num_decoding = batch.num_tokens - batch.num_prefill_tokens
    return STEP_MS + DECODE_ROW_MS * num_decoding + PROMPT_TOKEN_MS * batch.num_prefill_tokens


def compute(scheduler: Scheduler, batch: ScheduledBatch) -> Iterator[Sequence]:
    """Have the batch computed; each sequence that has got a token by it, before the next one is looked at."""
    for entry in batch.entries:
        sequence = entry.sequence
        begin = sequence.num_computed_tokens
        sequence.num_computed_tokens += entry.num_new_tokens
        scheduler.commit(sequence, begin)
        if sequence.num_computed_tokens == sequence.num_tokens:
            sequence.token_ids.append(0)
            yield sequence


def main(words: abc.Sequence[str] | None = None) -> int:
    """Print a table of all cases; the exit code."""
    parser = argparse.ArgumentParser(description="simulates admission under pressure on the cache")
    parser.add_argument(
        "--assumed", type=int, default=256, help="tokens of an answer before any are known; default: 256"
    )
    given = parser.parse_args(words)
    sys.stdout.write(
        "| answers | tokens/s | preemptions | running, mean | prompt tokens computed |\n|---|---|---|---|---|\n"
    )
    for case in CASES:
        simulation = Simulation(case, given.assumed)
        simulation.run()
        running = simulation.num_running / simulation.num_steps
        counts = f"{simulation.stats.num_preemptions} | {running:.1f} | {simulation.num_prompt_tokens}"
        sys.stdout.write(f"| {case.name} | {simulation.tokens_per_s:.0f} | {counts} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
