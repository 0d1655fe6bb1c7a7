"""Reads one tool call with bare text between tags, and types it by the tool's schema. Runs on the event loop."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from dragoman.server.generation.output_parsers.base import first_marker, num_open
from dragoman.server.generation.output_parsers.call_reader import (
    MAX_HEADER_CHARS,
    CallStart,
    MakeReader,
    PiecewiseReader,
    Progress,
)
from dragoman.server.generation.output_parsers.text_values import STRING, argument_schemas, dumped, kinds, typed

_NAME = re.compile(r"[\w.\-]+")


@dataclass(frozen=True, slots=True)
class TagSyntax:
    """`head` is before the name, which ends with `name_close` or, where that is "", before one of `name_ends`.

    `is_padded`: a line break after `value_begin` and one before `value_end` are not part of the value. `value_end` may name
    the `{key}`. `read` makes JSON of a value's text.
    """

    head: str
    name_close: str
    key_begin: str
    key_end: str
    value_begin: str
    value_end: str
    end: str
    is_padded: bool
    name_ends: tuple[str, ...] = ()
    read: Callable[[str, Any, Mapping[str, Any]], str] = typed


class _State(Enum):
    HEAD = 1
    NAME = 2
    BETWEEN = 3  # before an argument, or the end
    KEY = 4
    VALUE_TAG = 5
    VALUE = 6


class TaggedCallReader(PiecewiseReader):
    def __init__(self, start: CallStart, syntax: TagSyntax) -> None:
        super().__init__(start)
        self._syntax = syntax
        self._state = _State.HEAD
        self._has_arguments = False
        self._key = ""
        self._value: list[str] = []
        self._streams_value = False

    def _step(self) -> bool:
        steps = {
            _State.HEAD: self._head,
            _State.NAME: self._read_name,
            _State.BETWEEN: self._between,
            _State.KEY: self._read_key,
            _State.VALUE_TAG: self._value_tag,
            _State.VALUE: self._read_value,
        }
        return steps[self._state]()

    def _head(self) -> bool:
        return self._expect(self._syntax.head, _State.NAME)

    def _read_name(self) -> bool:
        close = self._syntax.name_close
        ends = (close,) if close else self._syntax.name_ends
        size = min((found for end in ends if (found := self._waiting.find(end)) >= 0), default=-1)
        if size < 0:
            return self._fail() if len(self._waiting) > MAX_HEADER_CHARS else False
        name = self._waiting[:size].strip()
        if not _NAME.fullmatch(name) or not self._set_name(name):
            return self._fail()
        self._take(size + len(close))
        self._write("{")
        self._state = _State.BETWEEN
        return True

    def _between(self) -> bool:
        self._skip_space()
        key_begin, end = self._syntax.key_begin, self._syntax.end
        if self._waiting.startswith(end):
            self._take(len(end))
            self._write("}")
            self.progress = Progress.DONE
            return False
        if end.startswith(self._waiting):  # so may a key, of which this would be the beginning
            return False
        if self._waiting.startswith(key_begin):
            self._take(len(key_begin))
            self._state = _State.KEY
            return True
        return False if key_begin.startswith(self._waiting) else self._fail()

    def _read_key(self) -> bool:
        size = self._waiting.find(self._syntax.key_end)
        if size < 0:
            return self._fail() if len(self._waiting) > MAX_HEADER_CHARS else False
        self._key = self._take(size).strip()
        self._take(len(self._syntax.key_end))
        if not self._key or "<" in self._key:
            return self._fail()
        self._write(f"{', ' if self._has_arguments else ''}{dumped(self._key)}: ")
        self._has_arguments = True
        self._state = _State.VALUE_TAG
        return True

    def _value_tag(self) -> bool:
        begin = self._syntax.value_begin
        if begin:
            self._skip_space()
            if not self._waiting.startswith(begin):
                return False if begin.startswith(self._waiting) else self._fail()
        padding = "\n" if self._syntax.is_padded else ""
        if padding and len(self._waiting) == len(begin):
            return False  # the line break may still come
        self._take(len(begin) + self._waiting.startswith(padding, len(begin)) * len(padding))
        schema, root = self._schema()
        self._streams_value = self._start.streams and kinds(schema, root) == STRING
        self._value.clear()
        if self._streams_value:
            self._write('"')
        self._state = _State.VALUE
        return True

    def _read_value(self) -> bool:
        end = self._syntax.value_end.replace("{key}", self._key)
        size = self._waiting.find(end)
        followers = self._followers()
        if (unclosed := first_marker(self._waiting[: size if size >= 0 else None], followers)) is not None:
            self._add(self._take(unclosed[0]))
            self._end_value()
            self._state = _State.BETWEEN
            return True
        if size < 0:
            # The line break before the end mark is not part of the value, so it waits as well.
            padded = ("\n" + end,) if self._syntax.is_padded else ()
            self._add(self._take(len(self._waiting) - num_open(self._waiting, end, *padded, *followers)))
            return False
        if end != self._syntax.value_end and self._is_within(end, size):
            self._add(self._take(size + len(end)))
            return True
        value = self._take(size)
        self._take(len(end))
        self._add(value.removesuffix("\n") if self._syntax.is_padded else value)
        self._end_value()
        self._state = _State.BETWEEN
        return True

    def _followers(self) -> list[str]:
        """Lines that end a value whose own end is missing: the next argument that the tool has, or the end of the call."""
        syntax = self._syntax
        if self._start.streams or not syntax.is_padded:
            return []  # a grammar ensures the ends, or values are not on lines of their own
        known = argument_schemas(self._start.schemas.get(self._name, {}))
        nexts = [f"\n{syntax.key_begin}{key}{syntax.key_end}" for key in known if key != self._key]
        return [*nexts, f"\n{syntax.end}"]

    def _is_within(self, end: str, size: int) -> bool:
        """True if the end mark at `size` closes a tag of the same name within the value."""
        value = "".join(self._value) + self._waiting[:size]
        begin = f"{self._syntax.key_begin}{self._key}{self._syntax.key_end}"
        return not self._streams_value and value.count(begin) > value.count(end)

    def _add(self, text: str) -> None:
        if self._streams_value:
            self._write(dumped(text)[1:-1])
        else:
            self._value.append(text)

    def _end_value(self) -> None:
        if self._streams_value:
            self._write('"')
            return
        self._write(self._syntax.read("".join(self._value), *self._schema()))

    def _schema(self) -> tuple[Any, Mapping[str, Any]]:
        root = self._start.schemas.get(self._name, {})
        return argument_schemas(root).get(self._key), root

    def _expect(self, text: str, state: _State) -> bool:
        if not self._waiting.startswith(text):
            return False if text.startswith(self._waiting) else self._fail()
        self._take(len(text))
        self._state = state
        return True


def tagged_calls(syntax: TagSyntax) -> MakeReader:
    return partial(TaggedCallReader, syntax=syntax)
