"""Readers of one tool call each, on the event loop. A call that no grammar guarantees is passed on once complete.

Here are the parts that all readers share, and the reader of a call that is one JSON object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Protocol

from dragoman.types import ToolCallDelta

ARGUMENT_KEYS = ("arguments", "parameters")

_CALL_KEYS = ("type", "id", "tool_call_id", *ARGUMENT_KEYS)  # one of these, or the name's, comes first in every call
_FIRST_KEY = re.compile(r'\{\s*"([^"]*)"')
_OUTSIDE_STRINGS = frozenset(' \t\r\n{}[]:,"0123456789+-.eEtrufalsn')  # all that JSON has there


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


class ObjectScanner:
    """Follows a JSON object character by character. `depth`: of brackets; `is_wrong`: it is not JSON."""

    __slots__ = ("_in_string", "_is_escaped", "depth", "is_wrong")

    def __init__(self) -> None:
        self.depth = 0
        self.is_wrong = False
        self._in_string = False
        self._is_escaped = False

    def step(self, character: str) -> bool:
        """Take in a character; True if it is a bracket that counts."""
        if self._in_string:
            self._in_string = self._is_escaped or character != '"'
            self._is_escaped = character == "\\" and not self._is_escaped
        elif character not in _OUTSIDE_STRINGS:
            self.is_wrong = True
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self.depth += 1
            return True
        elif character in "}]":
            self.depth -= 1
            return True
        return False


class JsonCallReader:
    """`name_key`: the object's key for the tool's name."""

    def __init__(self, start: CallStart, name_key: str = "name") -> None:
        self.progress = Progress.OPEN
        self.is_begun = False
        self._start = start
        self._streams = start.streams
        self._name_key = name_key
        self._scanner = ObjectScanner()
        self._chunks: list[str] = []
        self._size = 0
        self._is_plausible = False  # the first key is one that calls have
        self._begin = self._end = -1  # of the arguments; -1 = not known
        self._pieces: list[str] = []  # of the arguments, not passed on yet

    @property
    def raw(self) -> str:
        if len(self._chunks) > 1:
            self._chunks = ["".join(self._chunks)]
        return self._chunks[0] if self._chunks else ""

    def feed(self, text: str) -> str:
        size = len(text)
        for position, character in enumerate(text):
            if self._scanner.step(character):
                self._note_bracket(character, self._size + position)
            elif self._scanner.is_wrong:
                self.progress = Progress.NOT_A_CALL
            if self.progress is not Progress.OPEN:
                size = position + 1
                break
        self._keep(text[:size])
        if not self._streams and not self._could_be_call():
            self.progress = Progress.NOT_A_CALL
        return text[size:]

    def deltas(self) -> tuple[ToolCallDelta, ...]:
        if self._streams:
            return self._streamed()
        if self.progress is not Progress.DONE:
            return ()
        self.is_begun = True
        return (ToolCallDelta(self._start.number, self._start.call_id, *self._whole()),)

    def _note_bracket(self, character: str, position: int) -> None:
        depth = self._scanner.depth
        if depth == 2 and self._begin < 0 and character == "{":
            self._begin = position
        elif depth == 1 and self._begin >= 0 and self._end < 0 and character in "}]":
            self._end = position + 1
        elif depth == 0:
            self.progress = Progress.DONE

    def _keep(self, text: str) -> None:
        begin, offset = self._begin, self._size
        self._chunks.append(text)
        self._size += len(text)
        if self._streams and begin >= 0 and (self._end < 0 or self._end > offset):
            end = self._end if self._end >= 0 else self._size
            self._pieces.append(text[max(0, begin - offset) : end - offset])

    def _could_be_call(self) -> bool:
        if self.progress is Progress.NOT_A_CALL:
            return False
        if not self._is_plausible:
            # Known early, so that an ordinary JSON answer need not wait for its end.
            first = _FIRST_KEY.match(self.raw)
            if first is None and self.progress is Progress.OPEN:
                return self._size <= MAX_HEADER_CHARS
            self._is_plausible = first is not None and first[1] in (self._name_key, *_CALL_KEYS)
        return self._is_plausible and (self.progress is Progress.OPEN or self._parsed() is not None)

    def _parsed(self) -> tuple[str, Any] | None:
        """None if the object is not a call. Line breaks inside strings are accepted."""
        try:
            found = json.loads(self.raw, strict=False, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return None
        name = found.get(self._name_key) if isinstance(found, dict) else None
        if not isinstance(name, str) or not self._start.allows(name):
            return None
        given: Any = next((found[key] for key in ARGUMENT_KEYS if found.get(key) is not None), {})
        is_object = isinstance(given, dict) or (isinstance(given, str) and isinstance(json_value(given), dict))
        return (name, given) if is_object else None

    def _whole(self) -> tuple[str, str]:
        """The arguments come as they were written, where that is valid JSON."""
        parsed = self._parsed()
        assert parsed is not None  # `feed` made sure
        name, given = parsed
        if isinstance(given, str):
            return name, given
        written = self.raw[self._begin : self._end]
        return name, written if json_value(written) == given else json.dumps(given, ensure_ascii=False)

    def _streamed(self) -> tuple[ToolCallDelta, ...]:
        if self._begin < 0:
            return ()
        if self.is_begun:
            piece = self._flushed()
            return (ToolCallDelta(self._start.number, arguments=piece),) if piece else ()
        name = re.search(rf'"{self._name_key}"\s*:\s*("(?:[^"\\]|\\.)*")', self.raw[: self._begin])
        if name is None:  # not what the grammar promised: another engine may follow it differently
            self._streams = False
            return self.deltas() if self._could_be_call() else ()
        self.is_begun = True
        return (ToolCallDelta(self._start.number, self._start.call_id, json.loads(name[1]), self._flushed()),)

    def _flushed(self) -> str:
        piece = "".join(self._pieces)
        self._pieces.clear()
        return piece


def json_calls(name_key: str = "name") -> MakeReader:
    return partial(JsonCallReader, name_key=name_key)


def arguments_text(written: str) -> str | None:
    """An object with arguments as strict JSON, as it was written if that is strict; None if it is not an object."""
    if isinstance(json_value(written), dict):
        return written
    try:
        found = json.loads(written, strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return json.dumps(found, ensure_ascii=False) if isinstance(found, dict) else None


def json_value(text: str) -> Any:
    """The value of strict JSON, None for anything else."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> Any:
    """NaN and Infinity are Python's, not JSON's."""
    raise ValueError(constant)
