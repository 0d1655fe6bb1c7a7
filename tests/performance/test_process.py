"""What happens to a counting process is told, and takes neither the tests nor the next count down."""

from __future__ import annotations

import os
import signal

import pytest

from tests.performance.process import CountingFailed, CountingProcess


def number_of_process() -> int:
    return os.getpid()


def fail(words: str) -> None:
    raise ValueError(words)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def test_functions_run_in_one_other_process(counting: CountingProcess) -> None:
    elsewhere = {counting.run(number_of_process) for _ in range(2)}
    assert len(elsewhere) == 1
    assert os.getpid() not in elsewhere


def test_an_exception_is_told_with_its_place_and_the_process_stays(counting: CountingProcess) -> None:
    before = counting.run(number_of_process)
    with pytest.raises(CountingFailed, match=r"(?s)in fail.*ValueError: of these words"):
        counting.run(fail, "of these words")
    assert counting.run(number_of_process) == before


def test_a_crash_is_one_failure_and_the_next_count_has_a_new_process(counting: CountingProcess) -> None:
    before = counting.run(number_of_process)
    with pytest.raises(CountingFailed, match="crash: the counting process died of SIGSEGV"):
        counting.run(crash)
    assert counting.run(number_of_process) != before
