"""The counter counts what it says: every instruction of the code under watch, the same number every time."""

from __future__ import annotations

import dis
import json
import sys
import threading
from colorsys import rgb_to_yiq

from tests.performance.counter import InstructionCounter


def convert_colour(num_times: int) -> None:
    """Run a function of the standard library that neither branches nor calls."""
    for _ in range(num_times):
        rgb_to_yiq(0.1, 0.2, 0.3)


def test_a_straight_function_counts_its_instructions_at_every_call() -> None:
    counter = InstructionCounter()
    with counter.watch():
        convert_colour(5)
    # What stands in the bytecode for the interpreter's own use is not executed; RESUME is where the call is told.
    names = [one.opname for one in dis.get_instructions(rgb_to_yiq)]
    expected = len([name for name in names if name not in ("CACHE", "RESUME")])
    assert counter.num_calls(rgb_to_yiq) == 5
    assert 5 * expected <= counter.total <= 5 * (expected + 1)


def test_the_same_work_counts_the_same() -> None:
    text = json.dumps({"a": [1, 2.5, "three"], "b": None})
    totals = []
    for _ in range(3):
        counter = InstructionCounter()
        with counter.watch():
            json.loads(text, parse_float=float)
        totals.append(counter.total)
    assert totals[0] == totals[1] == totals[2] > 20


def test_the_tests_own_code_is_not_counted() -> None:
    counter = InstructionCounter()
    with counter.watch():
        count_nothing()
    assert counter.total == 0


def count_nothing() -> int:
    return sum(i for i in range(100))


def test_threads_are_counted_apart() -> None:
    here, there = InstructionCounter(), InstructionCounter()
    with there.watch_new_threads():
        thread = threading.Thread(target=convert_colour, args=(7,))
        with here.watch():
            convert_colour(1)
        thread.start()
        thread.join()
    assert (here.num_calls(rgb_to_yiq), there.num_calls(rgb_to_yiq)) == (1, 7)


def test_whoever_traced_before_goes_on_afterwards() -> None:
    before = sys.gettrace()
    try:
        sys.settrace(_no_trace)
        with InstructionCounter().watch():
            pass
        assert sys.gettrace() is _no_trace
    finally:
        sys.settrace(before)


def _no_trace(*_: object) -> None:
    return None
