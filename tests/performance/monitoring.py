"""How Python 3.12 and newer report instructions: `sys.monitoring` tells of every thread's, and they are sorted here.

Does: find who counts for the thread that an event comes from. Does not: keep numbers (the counter does). The events are
switched on with the first block and stay on to the end of the process: switching them rewrites code that other threads run.
"""

from __future__ import annotations

import sys
import threading
from threading import get_ident
from types import CodeType

from tests.performance.counts import TallyOf

assert sys.version_info >= (3, 12)

_TOOL = sys.monitoring.PROFILER_ID
_EVENTS = sys.monitoring.events
_CALLS = (_EVENTS.PY_START, _EVENTS.PY_RESUME, _EVENTS.PY_THROW)

_watched: dict[int, TallyOf] = {}  # by thread


class ThisThread:
    """A block in which this thread is counted."""

    def __init__(self, tally_of: TallyOf) -> None:
        self._tally_of = tally_of

    def begin(self) -> None:
        """Count from here on."""
        _switch_on()
        _watched[get_ident()] = self._tally_of

    def end(self) -> None:
        """Count no more."""
        del _watched[get_ident()]


class NewThreads:
    """A block that takes the threads which are started inside it, to their ends."""

    def __init__(self, tally_of: TallyOf) -> None:
        self._tally_of = tally_of
        self._start = threading.Thread.start

    def begin(self) -> None:
        """Take threads from here on."""
        _switch_on()

        def start(thread: threading.Thread) -> None:
            run = thread.run

            def run_watched() -> None:
                block = ThisThread(self._tally_of)
                block.begin()
                try:
                    run()
                finally:
                    block.end()

            thread.run = run_watched  # type: ignore[method-assign]
            self._start(thread)

        threading.Thread.start = start  # type: ignore[method-assign]

    def end(self) -> None:
        """Take no more."""
        threading.Thread.start = self._start  # type: ignore[method-assign]


def _switch_on() -> None:
    if sys.monitoring.get_tool(_TOOL) is not None:
        return
    sys.monitoring.use_tool_id(_TOOL, "instruction counter")
    for event in _CALLS:
        sys.monitoring.register_callback(_TOOL, event, _on_call)
    sys.monitoring.register_callback(_TOOL, _EVENTS.INSTRUCTION, _on_instruction)
    sys.monitoring.set_events(_TOOL, _EVENTS.INSTRUCTION | _CALLS[0] | _CALLS[1] | _CALLS[2])


def _on_call(code: CodeType, _offset: int, _raised: object = None) -> None:
    tally_of = _watched.get(get_ident())
    tally = None if tally_of is None else tally_of(code)
    if tally is not None:
        tally.num_calls += 1


def _on_instruction(code: CodeType, _offset: int) -> None:
    tally_of = _watched.get(get_ident())
    tally = None if tally_of is None else tally_of(code)
    if tally is not None:
        tally.num_instructions += 1
