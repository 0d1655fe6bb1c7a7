"""How far those are who have no token yet: what is written down when somebody asks, against a clock that steps move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from dragoman.engine.base import PromptProgress
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.sample.sampler import Sampler
from tests.engine.fake_runner import FakeRunner
from tests.engine.naive import Collector, make_request

TOKEN_S = 0.5  # of a prompt, or of an answer
VOCAB_SIZE = 24


class Clock(FakeRunner):
    """A runner whose steps take as long as they have tokens. It is the engine's clock, too."""

    now_s, token_s = 100.0, TOKEN_S

    def forward(self, batch: Any) -> Any:
        self.now_s += self.token_s * len(batch.input_ids)
        return super().forward(batch)

    def __call__(self) -> float:
        return self.now_s


def engine(**config: Any) -> tuple[Collector, Callable[[], dict[int, PromptProgress]]]:
    """An engine, and how to take a step in which it is asked."""
    clock = Clock(vocab_size=VOCAB_SIZE, num_blocks=400)
    core = EngineCore(clock, Sampler(VOCAB_SIZE), RollingConfig(**config), clock=clock)
    collector = Collector(core)

    def asked() -> dict[int, PromptProgress]:
        core.progress.ask()
        collector.step()
        return dict(core.progress.rows)

    return collector, asked


def prompt(first: int, size: int) -> list[int]:
    return [1 + (first * 7 + place * first) % (VOCAB_SIZE - 1) for place in range(size)]


def test_a_prompt_is_told_token_by_token_and_the_queue_in_its_order() -> None:
    collector, asked = engine(max_batch_tokens=8, max_slowdown=0)
    for key, size in enumerate((24, 16, 16)):
        collector.add(key, make_request(prompt(key + 1, size), max_tokens=4, name=str(key)))
    first = asked()
    assert [first[key].has_begun for key in range(3)] == [True, False, False]
    assert [first[key].num_ahead for key in range(3)] == [0, 0, 1]
    assert (first[0].num_tokens, first[0].num_read, first[0].since_s) == (24, 8, 8 * TOKEN_S)
    # 16 tokens are left of the first prompt; whoever is behind waits for those, and for its own.
    assert [first[key].expected_s for key in range(3)] == pytest.approx([16 * TOKEN_S, 32 * TOKEN_S, 48 * TOKEN_S])
    second = asked()
    assert second[0].num_read == 16
    assert second[0].expected_s == pytest.approx(8 * TOKEN_S)
    assert second[2].expected_s == pytest.approx(40 * TOKEN_S)
    third = asked()
    assert 0 not in third  # it has its first token
    assert third[1].num_ahead == 0


def test_who_goes_first_by_priority_is_told_so() -> None:
    collector, asked = engine(max_batch_tokens=8, max_slowdown=0)
    requests = [make_request(prompt(key + 1, 16), max_tokens=4, name=str(key)) for key in range(4)]
    for key, request in enumerate(requests):
        collector.add(key, msgspec.structs.replace(request, priority=5 if key == 3 else 0))
    rows = asked()
    assert rows[3].has_begun
    assert [rows[key].num_ahead for key in range(3)] == [0, 1, 2]


def test_where_all_places_are_taken_the_answers_before_count() -> None:
    collector, asked = engine(max_batch_tokens=64, max_num_seqs=2, max_slowdown=0)
    for key in range(5):
        request = make_request(prompt(key + 1, 8), max_tokens=10 + 10 * key, name=str(key), ignore_eos=True)
        collector.add(key, request)
    rows = asked()
    assert set(rows) == {2, 3, 4}
    expected = [rows[key].expected_s for key in (2, 3, 4)]
    assert all(one is not None and one > 0 for one in expected)
    assert expected == sorted(expected, key=lambda one: one or 0)
    for _ in range(12):
        collector.step()
    assert 2 not in asked()  # the first has ended, and this one has its place


def test_cached_tokens_are_told_and_counted_as_read() -> None:
    collector, asked = engine(max_batch_tokens=8, max_slowdown=0)
    collector.add(0, make_request(prompt(3, 32), max_tokens=1, name="0"))
    collector.run()
    collector.add(1, make_request([*prompt(3, 32), *prompt(5, 32)], max_tokens=1, name="1"))
    row = asked()[1]
    assert row.num_cached > 0
    assert row.num_read == row.num_cached + 8


def test_nothing_is_written_down_unless_somebody_asks_and_seldom_if_many_do() -> None:
    collector, asked = engine(max_batch_tokens=4, max_slowdown=0)
    board = collector.core.progress
    collector.add(0, make_request(prompt(1, 128), max_tokens=1, name="0"))
    for _ in range(5):
        collector.step()
    assert board.rows == {}
    Clock.token_s = TOKEN_S / 50  # a step takes 0.04 s
    try:
        looks: list[Mapping[int, PromptProgress]] = []
        for _ in range(24):
            asked()
            if not looks or board.rows is not looks[-1]:
                looks.append(board.rows)
    finally:
        Clock.token_s = TOKEN_S
    assert len(looks) == 4  # 0.96 s, at most each quarter of one
