"""The counter counts what it says: every instruction of the code under watch, the same number every time."""

from __future__ import annotations

import dis
import json
import sys
import threading
from colorsys import rgb_to_yiq

import pytest

from tests.performance.counter import InstructionCounter
from tests.performance.counts import Counts
from tests.performance.process import CountingProcess

pytestmark = pytest.mark.varies("each Python counts instructions in a way of its own")


def convert_colour(num_times: int) -> None:
    """Run a function of the standard library that neither branches nor calls."""
    for _ in range(num_times):
        rgb_to_yiq(0.1, 0.2, 0.3)


def count_conversions(num_times: int) -> Counts:
    counter = InstructionCounter()
    with counter.watch():
        convert_colour(num_times)
    return counter.counts()


def test_a_straight_function_counts_its_instructions_at_every_call(counting: CountingProcess) -> None:
    counts = counting.run(count_conversions, 5)
    # What stands in the bytecode for the interpreter's own use is not executed; RESUME is where the call is told.
    names = [one.opname for one in dis.get_instructions(rgb_to_yiq)]
    expected = len([name for name in names if name not in ("CACHE", "RESUME")])
    assert counts.num_calls(rgb_to_yiq) == 5
    assert 5 * expected <= counts.total <= 5 * (expected + 1)


def count_reading(num_times: int) -> list[int]:
    text = json.dumps({"a": [1, 2.5, "three"], "b": None})
    totals = []
    for _ in range(num_times):
        counter = InstructionCounter()
        with counter.watch():
            json.loads(text, parse_float=float)
        totals.append(counter.total)
    return totals


def test_the_same_work_counts_the_same(counting: CountingProcess) -> None:
    totals = counting.run(count_reading, 3)
    assert totals[0] == totals[1] == totals[2] > 20


def count_nothing() -> int:
    counter = InstructionCounter()
    with counter.watch():
        sum(i for i in range(100))
    return counter.total


def test_the_tests_own_code_is_not_counted(counting: CountingProcess) -> None:
    assert counting.run(count_nothing) == 0


def count_threads() -> list[Counts]:
    """What this thread, one that is started in the block, one that runs already and one that comes later are counted."""
    here, there = InstructionCounter(), InstructionCounter()
    is_wanted = threading.Event()

    def convert_when_wanted() -> None:
        is_wanted.wait()
        convert_colour(3)

    running = threading.Thread(target=convert_when_wanted)
    running.start()
    with there.watch_new_threads():
        inside = threading.Thread(target=convert_colour, args=(7,))
        with here.watch():
            convert_colour(1)
        is_wanted.set()
        running.join()
        inside.start()
        inside.join()
    later = threading.Thread(target=convert_colour, args=(5,))
    later.start()
    later.join()
    return [here.counts(), there.counts()]


def test_threads_are_counted_apart(counting: CountingProcess) -> None:
    here, there = counting.run(count_threads)
    assert (here.num_calls(rgb_to_yiq), there.num_calls(rgb_to_yiq)) == (1, 7)


def count_to_the_end() -> int:
    counter = InstructionCounter()
    may_go_on = threading.Event()

    def convert_twice() -> None:
        convert_colour(1)
        may_go_on.wait()
        convert_colour(1)

    thread = threading.Thread(target=convert_twice)
    with counter.watch_new_threads():
        thread.start()
    may_go_on.set()
    thread.join()
    return counter.counts().num_calls(rgb_to_yiq)


def test_a_thread_is_counted_to_its_end(counting: CountingProcess) -> None:
    assert counting.run(count_to_the_end) == 2


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="newer ones are not counted by tracing")
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
