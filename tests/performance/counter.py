"""Counts the bytecode instructions that Python functions execute on a thread: a cost that no other load can change.

Does: count the product's and its libraries' instructions and calls, by function. Does not: count what C code does, nor the
tests' own code. Used on the thread that is to be counted, in a process of its own (CountingProcess): an interpreter that
reports every instruction may crash, as 3.12.1 did while other threads ran.

Python 3.12 and newer report instructions to `sys.monitoring`, 3.11 to `sys.settrace`.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import CodeType

from tests.performance.counts import Counts, Tally, place_of

if sys.version_info >= (3, 12):
    from tests.performance import monitoring as interpreter
else:
    from tests.performance import tracing as interpreter

_TESTS = str(Path(__file__).resolve().parents[1])


class InstructionCounter:
    """Totals since it was made; use one counter per thread."""

    def __init__(self) -> None:
        self._tallies: dict[CodeType, Tally | None] = {}

    @property
    def total(self) -> int:
        """Instructions so far."""
        return sum([tally.num_instructions for tally in list(self._tallies.values()) if tally is not None])

    def counts(self) -> Counts:
        """What was counted so far."""
        return Counts({place_of(code): tally for code, tally in self._tallies.items() if tally is not None})

    def watch(self) -> Watch:
        """Count what this thread calls inside a `with` block."""
        return Watch(interpreter.ThisThread(self.tally_of))

    def watch_new_threads(self) -> Watch:
        """Count what a thread does that is started inside a `with` block, to its end."""
        return Watch(interpreter.NewThreads(self.tally_of))

    def tally_of(self, code: CodeType) -> Tally | None:
        """Where a function is to be counted; None if it is not to be."""
        try:
            return self._tallies[code]
        except KeyError:
            tally = None if code.co_filename.startswith(_TESTS) else Tally()
            return self._tallies.setdefault(code, tally)


class Watch:
    """A block in which something counts, undisturbed by the garbage collector.

    Not a generator: leaving one passes through the standard library, which would be counted.
    """

    def __init__(self, counting: interpreter.ThisThread | interpreter.NewThreads) -> None:
        self._counting = counting
        self._was_collecting = True

    def __enter__(self) -> None:
        self._was_collecting = gc.isenabled()
        gc.collect()
        gc.disable()  # when finalizers run depends on everything that was allocated before
        self._counting.begin()

    def __exit__(self, *_: object) -> None:
        self._counting.end()
        if self._was_collecting:
            gc.enable()
