"""How Python 3.11 reports instructions: a trace function for each thread, `sys.settrace`.

Does: have the functions that a thread calls traced. Does not: keep numbers (the counter does).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from tests.performance.counts import Tally, TallyOf

Tracer = Callable[[FrameType, str, Any], Any]


class _Block:
    """A block in which a thread's calls are traced."""

    def __init__(self, tally_of: TallyOf) -> None:
        self._tally_of = tally_of
        self._tracers: dict[CodeType, Tracer | None] = {}
        self._before: Any = None  # a trace function, if there was one

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Tracer | None:
        code = frame.f_code
        tally = self._tally_of(code)
        if tally is None:
            return None
        tally.num_calls += 1
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        tracer = self._tracers.get(code)
        if tracer is None:
            tracer = self._tracers[code] = _tracer_for(tally)
        return tracer


class ThisThread(_Block):
    """A block in which this thread is counted."""

    def begin(self) -> None:
        """Count from here on."""
        self._before = sys.gettrace()
        sys.settrace(self._on_call)

    def end(self) -> None:
        """Count no more; whoever traced before goes on."""
        sys.settrace(self._before)


class NewThreads(_Block):
    """A block that takes the threads which are started inside it, to their ends."""

    def begin(self) -> None:
        """Take threads from here on."""
        self._before = threading.gettrace()
        threading.settrace(self._on_call)

    def end(self) -> None:
        """Take no more."""
        threading.settrace(self._before)


def _tracer_for(tally: Tally) -> Tracer:
    def count(frame: FrameType, event: str, argument: Any) -> Tracer:
        if event == "opcode":
            tally.num_instructions += 1
        return count

    return count
