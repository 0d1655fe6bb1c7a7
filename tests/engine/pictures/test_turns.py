"""Two that take turns: nobody computes beside the other, or twice while the other waits; and nobody waits for long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

from dragoman.engine.rolling.pictures import Turn, Turns

LONG_S = 3600.0  # nobody gives up


@contextmanager
def long_turn(side: Turn) -> Iterator[None]:
    """A turn that counts as a long one, so that both sides wait for each other."""
    with side:
        yield
    side.last_s = LONG_S


def patient() -> Turns:
    """Two sides that wait for each other as long as it takes."""
    turns = Turns()
    turns.steps.last_s = turns.parts.last_s = LONG_S
    return turns


def test_they_alternate_as_long_as_both_want_to_compute() -> None:
    turns, log, has_ended = patient(), list[str](), threading.Event()

    def run(name: str, side: Turn) -> None:
        for _ in range(20):
            with long_turn(side):
                log.append(name)
                while not (turns.is_awaited or has_ended.is_set()):
                    pass
                log.append(name)
        has_ended.set()

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(run, "steps", turns.steps), pool.submit(run, "parts", turns.parts)]:
            future.result(60)
    assert log[::2] == log[1::2], "no turn began within another"
    assert all(first != second for first, second in pairwise(log[:76:2]))


def test_whoever_is_alone_never_waits() -> None:
    turns = patient()
    for _ in range(3):
        with turns.steps:
            assert not turns.is_awaited


def test_nobody_waits_for_turns_that_take_much_longer_than_its_own() -> None:
    turns = Turns()
    turns.steps.last_s, turns.parts.last_s = 0.01, LONG_S
    with turns.parts, turns.steps:
        assert not turns.is_awaited  # it would have waited for ever: this is one thread


def test_nobody_waits_long_for_a_turn_that_turns_out_to_be_long() -> None:
    turns = Turns()
    turns.steps.last_s = turns.parts.last_s = 0.005
    with turns.parts, turns.steps:
        pass
    for side in (turns.parts, turns.steps):
        with side:
            assert not turns.is_awaited


def test_a_failure_within_a_turn_ends_it() -> None:
    turns = patient()
    try:
        with turns.parts:
            raise ValueError("a part failed")
    except ValueError:
        pass
    with turns.steps:
        assert not turns.is_awaited
