"""Readers of one tool call each, on the event loop. A call that no grammar guarantees is passed on once complete.

Here are the bases that readers share, and the reader of a call that is one JSON object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Protocol

from dragoman.server.generation.output_parsers.base import num_open
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
        is_ready = self._start.streams and self._name
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


class JsonCallReader(PiecewiseReader):
    """A call that is one JSON object. `name_key`: its key for the tool's name."""

    def __init__(self, start: CallStart, name_key: str = "name") -> None:
        super().__init__(start)
        self._name_key = name_key
        self._scanner = ObjectScanner()
        self._size = 0  # characters of the object so far
        self._is_plausible = False  # the first key is one that calls have
        self._begin = self._end = -1  # of the arguments; -1 = not known

    def _step(self) -> bool:
        size = len(self._waiting)
        for position, character in enumerate(self._waiting):
            if self._scanner.step(character):
                self._note_bracket(character, self._size + position)
            elif self._scanner.is_wrong:
                self._fail()
            if self.progress is not Progress.OPEN:
                size = position + 1
                break
        text = self._take(size)
        self._size += size
        if self._start.streams and self._begin >= 0:
            self._pass_on(text)
        if not self._start.streams and self.progress is not Progress.NOT_A_CALL:
            self._check()
        return False

    def _note_bracket(self, character: str, position: int) -> None:
        depth = self._scanner.depth
        if depth == 2 and self._begin < 0 and character == "{":
            self._begin = position
        elif depth == 1 and self._begin >= 0 and self._end < 0 and character in "}]":
            self._end = position + 1
        elif depth == 0:
            self.progress = Progress.DONE

    def _pass_on(self, text: str) -> None:
        """Write the part of the newest text that belongs to the arguments."""
        if not self._name:
            head = "".join(self._taken)[: self._begin]
            found = re.search(rf'"{self._name_key}"\s*:\s*("(?:[^"\\]|\\.)*")', head)
            self._name = "" if found is None else json_value(found[1]) or ""
            if not self._name:  # not what the grammar promised: another engine may follow it differently
                self._start = self._start._replace(streams=False)
                return
        offset = self._size - len(text)
        end = self._size if self._end < 0 else self._end
        self._write(text[max(0, self._begin - offset) : max(0, end - offset)])

    def _check(self) -> None:
        """Give up an object that cannot be a call; take one apart that has ended."""
        is_open = self.progress is Progress.OPEN
        if self._is_plausible and is_open:
            return
        written = "".join(self._taken)
        if not self._is_plausible:
            # Known early, so that an ordinary JSON answer need not wait for its end.
            first = _FIRST_KEY.match(written)
            if first is None and is_open and self._size <= MAX_HEADER_CHARS:
                return
            self._is_plausible = first is not None and first[1] in (self._name_key, *_CALL_KEYS)
        if not self._is_plausible:
            self._fail()
        elif not is_open:
            self._take_apart(written)

    def _take_apart(self, written: str) -> None:
        """Take name and arguments, as they were written where that is valid JSON; line breaks in strings are accepted."""
        try:
            found = json.loads(written, strict=False, parse_constant=_refuse)
        except (ValueError, RecursionError):
            found = None
        arguments: Any = None
        if isinstance(found, dict) and isinstance(name := found.get(self._name_key), str) and self._set_name(name):
            arguments = next((found[key] for key in ARGUMENT_KEYS if found.get(key) is not None), {})
        if isinstance(arguments, dict):
            part = written[self._begin : self._end]
            self._write(part if json_value(part) == arguments else json.dumps(arguments, ensure_ascii=False))
        elif isinstance(arguments, str) and isinstance(json_value(arguments), dict):
            self._write(arguments)
        else:
            self._fail()


class HeadedCallReader(PiecewiseReader):
    """Base of readers of a header and arguments in brackets. `headers`: match it, with the groups `name` and perhaps `id`.

    A subclass has `_read_arguments`, a `_step` for the bracket and what follows.
    """

    def __init__(self, start: CallStart, headers: Sequence[re.Pattern[str]], bracket: str = "{") -> None:
        super().__init__(start)
        self._headers = headers
        self._bracket = bracket

    def _step(self) -> bool:
        if self._name:
            return self._read_arguments()
        size = self._waiting.find(self._bracket)
        if size < 0:
            return False if self._may_begin(self._waiting) else self._fail()
        found = (header.fullmatch(self._waiting, 0, size) for header in self._headers)
        match = next((match for match in found if match is not None), None)
        if size > MAX_HEADER_CHARS or match is None or not self._set_name(match["name"]):
            return self._fail()
        self._call_id = match.groupdict().get("id") or self._call_id
        self._take(size)
        return True

    def _may_begin(self, text: str) -> bool:
        """True if the text may become a header."""
        return len(text) <= MAX_HEADER_CHARS

    def _read_arguments(self) -> bool:
        raise NotImplementedError


class ArgumentsReader(HeadedCallReader):
    """Base of readers of arguments with commas between them. `brackets`: opening and closing ones, the call's first.

    `quotes`: marks before and behind texts; within those of one character, backslashes escape. A subclass has
    `_argument`.
    """

    def __init__(
        self,
        start: CallStart,
        header: re.Pattern[str],
        brackets: tuple[str, str],
        quotes: tuple[str, ...],
    ) -> None:
        super().__init__(start, (header,), brackets[0][0])
        self._opening, self._closing = brackets
        self._quotes = quotes
        self._depth = 0  # of brackets, the call's own included
        self._quote = ""  # the mark that ends the text that is being read
        self._is_escaped = False
        self._piece: list[str] = []  # of the argument that is being read
        self._has_arguments = False

    def _argument(self, text: str) -> str | None:
        """Key and value as in a JSON object, None if the text is not one."""
        raise NotImplementedError

    def _read_arguments(self) -> bool:
        if not self._depth:
            self._take(1)
            self._write("{")
            self._depth = 1
        text = self._waiting
        size = len(text) - num_open(text, *self._quotes)  # the beginning of a mark waits for the rest
        begin = position = 0
        while position < size and self._depth:
            place, position = position, position + self._follow(text, position)
            if not self._depth or (self._depth == 1 and text[place] == "," and not self._quote):
                self._piece.append(text[begin:place])
                begin = position
                if not self._end_argument():
                    return self._fail()
        self._piece.append(text[begin:position])
        self._take(position)
        if not self._depth:
            self._write("}")
            self.progress = Progress.DONE
        return False

    def _follow(self, text: str, place: int) -> int:
        """Note a bracket or the mark of a text there. Returns the number of its characters."""
        character = text[place]
        if self._quote:
            if self._is_escaped:
                self._is_escaped = False
            elif text.startswith(self._quote, place):
                size, self._quote = len(self._quote), ""
                return size
            else:
                self._is_escaped = character == "\\" and len(self._quote) == 1
        elif character in self._opening:
            self._depth += 1
        elif character in self._closing:
            self._depth -= 1
        else:
            self._quote = next((quote for quote in self._quotes if text.startswith(quote, place)), "")
            return len(self._quote) or 1
        return 1

    def _end_argument(self) -> bool:
        text = "".join(self._piece)
        self._piece.clear()
        if not self._depth and not text.strip():
            return True  # no arguments, or a comma after the last
        written = self._argument(text)
        if written is None:
            return False
        self._write(f"{', ' if self._has_arguments else ''}{written}")
        self._has_arguments = True
        return True


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
