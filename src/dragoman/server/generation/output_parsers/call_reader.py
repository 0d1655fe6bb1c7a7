"""Readers of one tool call each, on the event loop. A call that no grammar guarantees is passed on once complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple, Protocol

from dragoman.types import ToolCallDelta

Schemas = Mapping[str, Mapping[str, Any]]
"""The schema of each tool's arguments, by the tool's name."""

MAX_HEADER_CHARS = 300  # before a call's arguments; names have 64


class Progress(Enum):
    OPEN = 1
    DONE = 2
    NOT_A_CALL = 3


class CallStart(NamedTuple):
    """`number`: from 0, in the answer. `call_id`: unless the model writes one. `streams`: a grammar guarantees the call."""

    number: int
    call_id: str
    streams: bool
    schemas: Schemas
    needs_known_name: bool

    def allows(self, name: str) -> bool:
        return bool(name) and (not self.needs_known_name or name in self.schemas)


class CallReader(Protocol):
    """One call. `raw`: its text as far as it was read. `is_begun`: a delta was given."""

    progress: Progress
    is_begun: bool

    @property
    def raw(self) -> str: ...

    def feed(self, text: str) -> str:
        """Take in text up to the call's end, or to where it proves not to be a call. Returns the rest."""
        ...

    def deltas(self) -> tuple[ToolCallDelta, ...]:
        """The parts of the call that are new since the last time."""
        ...


MakeReader = Callable[[CallStart], CallReader]


class PiecewiseReader:
    """Base of readers: a subclass has `_step`, which consumes `_waiting` as far as it can and returns True to go on."""

    def __init__(self, start: CallStart) -> None:
        self.progress = Progress.OPEN
        self.is_begun = False
        self._start = start
        self._waiting = ""  # not taken apart yet
        self._taken: list[str] = []
        self._call_id = start.call_id
        self._name = ""
        self._written: list[str] = []  # of the arguments, not passed on yet

    @property
    def raw(self) -> str:
        return "".join(self._taken) + self._waiting

    def feed(self, text: str) -> str:
        self._waiting += text
        while self.progress is Progress.OPEN and self._step():
            pass
        if self.progress is Progress.OPEN:
            return ""
        rest, self._waiting = self._waiting, ""
        return rest

    def deltas(self) -> tuple[ToolCallDelta, ...]:
        is_ready = self._start.streams and self._name and self.progress is not Progress.NOT_A_CALL
        if not is_ready and self.progress is not Progress.DONE:
            return ()
        piece = "".join(self._written)
        self._written.clear()
        if self.is_begun:
            return (ToolCallDelta(self._start.number, arguments=piece),) if piece else ()
        if not piece:
            return ()
        self.is_begun = True
        return (ToolCallDelta(self._start.number, self._call_id, self._name, piece),)

    def _step(self) -> bool:
        raise NotImplementedError

    def _take(self, size: int) -> str:
        taken, self._waiting = self._waiting[:size], self._waiting[size:]
        self._taken.append(taken)
        return taken

    def _skip_space(self) -> None:
        self._take(len(self._waiting) - len(self._waiting.lstrip()))

    def _fail(self) -> bool:
        self.progress = Progress.NOT_A_CALL
        return False

    def _set_name(self, name: str) -> bool:
        """True if a call of that name counts as a call; else it is given up."""
        if not self._start.allows(name):
            return self._fail()
        self._name = name
        return True

    def _write(self, text: str) -> None:
        if text:
            self._written.append(text)
