"""Simulates two callers: one keeps a flood of requests waiting, the other asks now and then, and waits for first tokens.

Does: run the real scheduler and block manager with a step that costs what its rows and prompt tokens cost, in simulated
time, the same on every machine. Does not: run a model. From the repository's root:

    python -m benchmarks.fairness
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from benchmarks.admission import BLOCK_SIZE, VOCAB_SIZE, compute, step_ms
from dragoman.engine.rolling.blocks.block_manager import CachePool
from dragoman.engine.rolling.blocks.block_pools import BlockPools
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.forward.batch import ScheduledBatch
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.schedule.scheduler import Scheduler
from dragoman.engine.rolling.sequence import AddRequest, SequenceGroup
from dragoman.engine.rolling.stats import RollingStats
from dragoman.types import EngineRequest, FinishReason, SamplingParams

FLOOD, GUEST = "flood", "guest"


@dataclass(frozen=True, slots=True)
class Case:
    """`num_waiting` requests of the flood wait at any time; the guest asks every `pause_ms`, `num_asked` times."""

    num_waiting: int = 1000
    prompt_tokens: int = 100
    answer_tokens: int = 60
    max_num_seqs: int = 32
    pause_ms: float = 4000.0
    num_asked: int = 20


@dataclass(slots=True)
class Simulation:
    """One run. `guest_as`: the name that the guest has; that of the flood = nobody can tell them apart."""

    case: Case
    guest_as: str = GUEST
    first_token_ms: list[float] = field(default_factory=list)
    num_generated: int = 0
    time_ms: float = 0.0

    def run(self) -> None:
        """Until the guest has had all its first tokens."""
        case, sampler = self.case, Sampler(VOCAB_SIZE)
        config = RollingConfig(max_num_seqs=case.max_num_seqs, max_batch_tokens=512, prefix_cache="off")
        scheduler = Scheduler(config, BlockPools([CachePool(4096)], BLOCK_SIZE), RollingStats())
        asked: dict[int, float] = {}
        key = 0
        while len(self.first_token_ms) < case.num_asked:
            while len(scheduler.groups) - len(asked) < (case.num_waiting and case.num_waiting + case.max_num_seqs):
                scheduler.add(self._group(key, FLOOD, sampler))
                key += 1
            # Whoever is due while a step is computed has waited since then, not only since its end.
            while self.time_ms >= (due_ms := case.pause_ms * (len(self.first_token_ms) + len(asked) + 1)):
                asked[key] = due_ms
                scheduler.add(self._group(key, self.guest_as, sampler))
                key += 1
            if not scheduler.has_work:
                self.time_ms = due_ms
                continue
            batch = scheduler.schedule()
            begun = [one.sequence.group.key for one in batch.entries if not one.sequence.num_generated_tokens]
            self._step(scheduler, batch)
            for done in begun:
                if done in asked and self._has_output(scheduler, done):
                    self.first_token_ms.append(self.time_ms - asked.pop(done))

    def _has_output(self, scheduler: Scheduler, key: int) -> bool:
        group = scheduler.groups.get(key)
        return group is None or bool(group.sequences[0].num_generated_tokens)

    def _group(self, key: int, caller: str, sampler: Sampler) -> SequenceGroup:
        prompt = tuple((key + position) % VOCAB_SIZE for position in range(self.case.prompt_tokens))
        params = SamplingParams(temperature=0.0)
        request = EngineRequest(str(key), prompt, params, self.case.answer_tokens, seed=0, caller=caller)
        return SequenceGroup(AddRequest(key, request), key, sampler)

    def _step(self, scheduler: Scheduler, batch: ScheduledBatch) -> None:
        self.time_ms += step_ms(batch)
        for sequence in compute(scheduler, batch):
            self.num_generated += 1
            if sequence.num_generated_tokens >= self.case.answer_tokens:
                sequence.finish_reason = FinishReason.LENGTH
                scheduler.finish(sequence)


def main(words: Sequence[str] | None = None) -> int:
    """Print a table; the exit code."""
    parser = argparse.ArgumentParser(description="simulates a flood of one caller's requests beside another caller")
    parser.add_argument("--waiting", type=int, default=1000, help="requests of the flood that wait; default: 1000")
    flooded = Case(num_waiting=parser.parse_args(words).waiting)
    runs = {
        "alone": Simulation(Case(num_waiting=0)),
        "beside the flood": Simulation(flooded),
        "beside it, under its name": Simulation(flooded, guest_as=FLOOD),
    }
    sys.stdout.write(
        "| the guest is | first token, mean ms | largest | times alone | tokens/s of all |\n|---|---|---|---|---|\n"
    )
    alone_ms = 0.0
    for name, simulation in runs.items():
        simulation.run()
        mean_ms = fmean(simulation.first_token_ms)
        alone_ms = alone_ms or mean_ms
        rate = 1000 * simulation.num_generated / simulation.time_ms
        sys.stdout.write(
            f"| {name} | {mean_ms:.0f} | {max(simulation.first_token_ms):.0f} | {mean_ms / alone_ms:.1f} | {rate:.0f} |\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
