"""Reads one tool call, written as a JSON object, from text that comes in pieces.

Does: find the object's end, its name, its arguments; give the arguments on as they come, or whole once they are valid.
Does not: know what stands around the object. Made by `call_parser`, one reader per call, on the event loop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from enum import Enum
from typing import Any

from dragoman.types import ToolCallDelta

ARGUMENT_KEYS = ("arguments", "parameters")

_CALL_KEYS = ("name", "type", "id", *ARGUMENT_KEYS)  # one of these comes first in every call
_FIRST_KEY = re.compile(r'\{\s*"([^"]*)"')
_NAME = re.compile(r'"name"\s*:\s*("(?:[^"\\]|\\.)*")')
_OUTSIDE_STRINGS = frozenset(' \t\r\n{}[]:,"0123456789+-.eEtrufalsn')  # all that JSON has there


class Progress(Enum):
    """What is known of a call."""

    OPEN = 1
    DONE = 2
    NOT_A_CALL = 3


class JsonCallReader:
    """One call. `streams`: the text is sure to be a call (a grammar sees to that), so its parts are given on at once.

    `known_names`: an object with another name is no call; None = any name will do.
    """

    def __init__(self, *, index: int, call_id: str, streams: bool, known_names: Collection[str] | None) -> None:
        self.raw = ""  # the object as far as it was read
        self.progress = Progress.OPEN
        self.is_begun = False  # a delta was given
        self._index = index
        self._call_id = call_id
        self._streams = streams
        self._known_names = known_names
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._begin = self._end = -1  # of the arguments within `raw`; -1 = not known
        self._num_given = 0  # characters of the arguments

    def feed(self, text: str) -> str:
        """Take in text up to the object's end, or to the character that shows it is none; returns what comes after."""
        offset = len(self.raw)
        size = len(text)
        for position, character in enumerate(text):
            self._step(character, offset + position)
            if self.progress is not Progress.OPEN:
                size = position + 1
                break
        self.raw += text[:size]
        if not self._streams and not self._could_be_call():
            self.progress = Progress.NOT_A_CALL
        return text[size:]

    def deltas(self) -> tuple[ToolCallDelta, ...]:
        """What has become known since the last time."""
        if self._streams:
            return self._streamed()
        if self.progress is not Progress.DONE:
            return ()
        self.is_begun = True
        return (ToolCallDelta(self._index, self._call_id, *self._whole()),)

    def _step(self, character: str, position: int) -> None:
        if self._in_string:
            self._in_string = self._is_escaped or character != '"'
            self._is_escaped = character == "\\" and not self._is_escaped
        elif character not in _OUTSIDE_STRINGS:
            self.progress = Progress.NOT_A_CALL
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
            if self._depth == 2 and self._begin < 0 and character == "{":
                self._begin = position
        elif character in "}]":
            self._depth -= 1
            if self._depth == 1 and self._begin >= 0 and self._end < 0:
                self._end = position + 1
            if self._depth == 0:
                self.progress = Progress.DONE

    def _could_be_call(self) -> bool:
        """Whether the text so far is the beginning of a call; of a complete object, whether it is one."""
        if self.progress is Progress.NOT_A_CALL:
            return False
        first = _FIRST_KEY.match(self.raw)
        if first is not None and first[1] not in _CALL_KEYS:
            return False  # known early, so that an ordinary JSON answer need not wait for its end
        return self.progress is Progress.OPEN or self._parsed() is not None

    def _parsed(self) -> tuple[str, Any] | None:
        """Name and arguments of a complete object, None if it is no call. Line breaks inside strings are forgiven."""
        try:
            found = json.loads(self.raw, strict=False, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return None
        name = found.get("name") if isinstance(found, dict) else None
        if not isinstance(name, str) or not name or (self._known_names is not None and name not in self._known_names):
            return None
        given: Any = next((found[key] for key in ARGUMENT_KEYS if found.get(key) is not None), {})
        is_object = isinstance(given, dict) or (isinstance(given, str) and isinstance(_json(given), dict))
        return (name, given) if is_object else None

    def _whole(self) -> tuple[str, str]:
        """Name and arguments of a complete call; the arguments as they were written, where that is valid JSON."""
        parsed = self._parsed()
        assert parsed is not None  # `feed` made sure
        name, given = parsed
        if isinstance(given, str):
            return name, given
        written = self.raw[self._begin : self._end]
        return name, written if _json(written) == given else json.dumps(given, ensure_ascii=False)

    def _streamed(self) -> tuple[ToolCallDelta, ...]:
        if self._begin < 0:
            return ()
        end = self._end if self._end >= 0 else len(self.raw)
        piece = self.raw[self._begin + self._num_given : end]
        self._num_given += len(piece)
        if self.is_begun:
            return (ToolCallDelta(self._index, arguments=piece),) if piece else ()
        name = _NAME.search(self.raw, 0, self._begin)
        if name is None:  # not what the grammar promised: some other engine's idea of it
            self._streams = False
            return self.deltas() if self._could_be_call() else ()
        self.is_begun = True
        return (ToolCallDelta(self._index, self._call_id, json.loads(name[1]), piece),)


def _json(text: str) -> Any:
    """The value of strict JSON, None for anything else."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> Any:
    """NaN and Infinity are Python's, not JSON's. Raises: ValueError."""
    raise ValueError(constant)
