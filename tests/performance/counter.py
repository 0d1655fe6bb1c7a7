"""Counts the bytecode instructions that Python functions execute on a thread: a cost that no other load can change.

Does: count the product's and its libraries' instructions and calls, by function. Does not: count what C code does, nor the
tests' own code. Used on the thread that is to be counted; `watch_new_threads` counts on threads started inside it.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

_TESTS = str(Path(__file__).resolve().parents[1])

Tracer = Callable[[FrameType, str, Any], Any]


@dataclass(slots=True)
class Tally:
    """What was counted of one function. A coroutine that is resumed counts as called again."""

    num_instructions: int = 0
    num_calls: int = 0


class InstructionCounter:
    """Totals since it was made; use one counter per thread."""

    def __init__(self) -> None:
        self.tallies: dict[CodeType, Tally] = {}
        self._tracers: dict[CodeType, Tracer | None] = {}

    @property
    def total(self) -> int:
        """Instructions so far."""
        return sum([tally.num_instructions for tally in self.tallies.values()])

    def num_calls(self, function: Callable[..., Any]) -> int:
        """How often a Python function was called."""
        code: CodeType = function.__code__
        tally = self.tallies.get(code)
        return tally.num_calls if tally else 0

    def watch(self) -> Watch:
        """Count what this thread calls inside a `with` block; whoever traced before goes on afterwards."""
        return Watch(self._on_call, sys)

    def watch_new_threads(self) -> Watch:
        """Count what a thread does that is started inside a `with` block, to its end."""
        return Watch(self._on_call, threading)

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Tracer | None:
        code = frame.f_code
        if code not in self._tracers:
            self._tracers[code] = None if code.co_filename.startswith(_TESTS) else self._tracer_of(code)
        tracer = self._tracers[code]
        if tracer is not None:
            self.tallies[code].num_calls += 1
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        return tracer

    def _tracer_of(self, code: CodeType) -> Tracer:
        tally = self.tallies[code] = Tally()

        def count(frame: FrameType, event: str, argument: Any) -> Tracer:
            if event == "opcode":
                tally.num_instructions += 1
            return count

        return count


class Watch:
    """A block in which `tracer` is the trace function of this thread (`module` sys) or of new ones (threading).

    Not a generator: leaving one passes through the standard library, which would be counted.
    """

    def __init__(self, tracer: Tracer, module: ModuleType) -> None:
        self._tracer = tracer
        self._module = module
        self._before: Tracer | None = None
        self._was_collecting = True

    def __enter__(self) -> None:
        self._before = self._module.gettrace()
        self._was_collecting = gc.isenabled()
        gc.collect()
        gc.disable()  # when finalizers run depends on everything that was allocated before
        # Python 3.12 makes opcode events only if some frame wanted them before tracing began.
        sys._getframe().f_trace_opcodes = True
        self._module.settrace(self._tracer)

    def __exit__(self, *_: object) -> None:
        self._module.settrace(self._before)
        if self._was_collecting:
            gc.enable()
