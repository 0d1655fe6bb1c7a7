"""Slow grammar masks take turns: beside other sequences they have a quarter of the time, and the least served goes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.sequence import SequenceGroup
from dragoman.types import SLOW_MASK_S
from tests.engine.schedule.bench import Bench
from tests.support.maskers import ByForks

STEP_S = 0.01


class Slow(ByForks):
    """A grammar of which each mask takes so long."""

    def __init__(self, cost_s: float) -> None:
        self.last_s, self.total_s = cost_s, 0.0

    def fork(self) -> Slow:
        return self

    def fill_mask(self, bitmask_row: object) -> None:
        raise NotImplementedError

    def advance(self, token_id: int) -> bool:
        raise NotImplementedError

    def validate(self, token_ids: Sequence[int]) -> int:
        raise NotImplementedError

    @property
    def is_finished(self) -> bool:
        return False


class Served:
    """A scheduler whose steps take as long as the masks of their sequences, and a forward pass besides."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.tokens: Counter[int] = Counter()
        self.bench = Bench(RollingConfig(), num_blocks=4000, clock=lambda: self.now_s)

    def add(self, cost_s: float = 0.0, **sampling: int) -> SequenceGroup:
        return self.bench.add(4, max_tokens=10_000, masker=Slow(cost_s), **sampling)

    def run(self, seconds: float) -> None:
        """Step for so long."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += STEP_S
            for entry in self.bench.step().entries:
                self.tokens[entry.sequence.group.key] += 1
                masker = entry.sequence.sampler_state.masker
                assert isinstance(masker, Slow)
                masker.total_s += masker.last_s
                self.now_s += masker.last_s


def test_a_neighbour_keeps_three_quarters_of_the_time_however_many_are_slow() -> None:
    served = Served()
    neighbour = served.add(SLOW_MASK_S / 2)
    for _ in range(12):
        served.add(0.1)
    served.run(2.0)  # the first masks of all are not known to be slow
    served.tokens.clear()
    served.run(10.0)
    alone = 10.0 / (STEP_S + SLOW_MASK_S / 2)
    assert served.tokens[neighbour.key] > 0.7 * alone
    slow = [served.tokens[key] for key in range(1, 13)]
    assert sum(slow) >= 16, "a quarter of the time is theirs"
    assert max(slow) - min(slow) <= 1, "in turn"


def test_whoever_has_taken_least_goes_first() -> None:
    served = Served()
    costly, cheap = served.add(0.05), served.add(0.005)
    served.add()
    served.run(8.0)
    assert 7 * served.tokens[costly.key] < served.tokens[cheap.key] < 13 * served.tokens[costly.key]


def test_with_nobody_else_there_is_no_pause_and_several_that_are_quick_enough_go_together() -> None:
    served = Served()
    groups = [served.add(0.005, n=2), served.add(0.005)]
    served.run(3.0)
    tokens = [sequence.num_generated_tokens for group in groups for sequence in group.sequences]
    assert sum(tokens) > 0.9 * 3.0 / (STEP_S / 2 + 0.005), "two in a step"
    assert max(tokens[:2]) - min(tokens[:2]) <= 1, "a request's sequences get on together"
