"""Lets contenders take turns: one awake at a time, the order changed every round, failures told and survived.

Does: start processes or say why not, measure each once per round, keep what was measured. Does not: know what is measured.
A machine that grows slower for a while then slows everybody, and no median compares a good minute with a bad one.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from benchmarks.serving.load import LoadFailed
from benchmarks.serving.processes import JsonWorker, ProcessFailed, ServerProcess
from benchmarks.serving.results import Result

Taken = TypeVar("Taken")
Process = TypeVar("Process", ServerProcess, JsonWorker)

Metrics = Mapping[str, float]


@dataclass(slots=True)
class Contender(Generic[Taken]):
    """Something measured in turn. `failure`: why it stopped taking part, "" if it did not."""

    name: str
    process: ServerProcess | JsonWorker
    measure: Callable[[], Taken]
    runs: list[Taken] = field(default_factory=list)
    failure: str = ""


def start(stack: ExitStack, name: str, make: Callable[[], Process], failures: dict[str, str]) -> Process | None:
    """The started process, paused and ended with `stack`; None if it does not start, with the reason in `failures`."""
    say(f"starting {name}")
    try:
        process = make()
    except ProcessFailed as error:
        failures[name] = str(error)
        say(f"{name} failed: {error}")
        return None
    stack.enter_context(process)
    process.pause()
    return process


def take_turns(contenders: Sequence[Contender[Taken]], rounds: int, show: Callable[[Taken], str]) -> None:
    """Measure every contender `rounds` times, into its `runs`; one that fails is ended and left out from then on.

    Ctrl+C ends it early, once there is a whole round: what was measured until then is kept.
    """
    try:
        for number in range(rounds):
            _take_round(contenders, number, show)
    except KeyboardInterrupt:
        if not all(contender.runs for contender in contenders if not contender.failure):
            raise
        say("interrupted; what was measured until now counts")


def _take_round(contenders: Sequence[Contender[Taken]], number: int, show: Callable[[Taken], str]) -> None:
    first = number % max(1, len(contenders))
    for contender in [*contenders[first:], *contenders[:first]]:
        if contender.failure:
            continue
        try:
            with contender.process.awake():
                contender.runs.append(contender.measure())
        except (ProcessFailed, LoadFailed) as error:
            contender.failure = str(error)
            contender.process.stop()
            say(f"round {number + 1}: {contender.name} failed: {error}")
            continue
        say(f"round {number + 1}: {contender.name}: {show(contender.runs[-1])}")


def medians(runs: Sequence[Metrics]) -> dict[str, float]:
    """The median of every metric over the runs."""
    return {key: round(statistics.median(run[key] for run in runs), 3) for key in (runs[0] if runs else {})}


def failed(row: int, failures: Mapping[str, str]) -> list[Result]:
    """Results that tell which subjects failed and why."""
    return [Result(row, name, {"failed": reason}) for name, reason in failures.items()]


def say(text: str) -> None:
    """Progress, for the person who waits."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
