"""Reads one tool call in Gemma 4's notation: bare keys, and texts between marks. Runs on the event loop."""

from __future__ import annotations

import json
import re

from dragoman.server.generation.output_parsers.base import num_open
from dragoman.server.generation.output_parsers.call_reader import (
    MAX_HEADER_CHARS,
    CallStart,
    PiecewiseReader,
    Progress,
)
from dragoman.server.generation.output_parsers.json_call import json_value
from dragoman.server.generation.output_parsers.text_values import dumped

HEAD = "call:"
QUOTE = '<|"|>'  # before and behind a text

_HEADER = re.compile(rf"\s*{HEAD}\s*(?P<name>[\w.\-]+)\s*")
_KEY = re.compile(r'[^\s:,{}\[\]<"]+')
_WORD = re.compile(r"[^,{}\[\]]*")
_WORDS = {"True": "true", "False": "false", "None": "null", "null": "null"}
_MAX_DEPTH = 32


class QuotedCallReader(PiecewiseReader):
    """One call, `call:name{key:value,...}`. Texts may be strings of JSON as well."""

    def __init__(self, start: CallStart) -> None:
        super().__init__(start)
        self._depth = 0  # of brackets, the call's own included; 0 = in the name
        self._quote = ""  # the mark that ends the text that is being read
        self._is_escaped = False
        self._piece: list[str] = []  # of the argument that is being read
        self._has_arguments = False

    def _step(self) -> bool:
        return self._scan() if self._depth else self._head()

    def _head(self) -> bool:
        size = self._waiting.find("{")
        if size > MAX_HEADER_CHARS or (size < 0 and len(self._waiting) > MAX_HEADER_CHARS):
            return self._fail()
        if size < 0:
            return False
        match = _HEADER.fullmatch(self._waiting, 0, size)
        if match is None or not self._set_name(match["name"]):
            return self._fail()
        self._take(size + 1)
        self._write("{")
        self._depth = 1
        return True

    def _scan(self) -> bool:
        position, size = 0, len(self._waiting)
        begin = 0
        while position < size and self._depth:
            character = self._waiting[position]
            if self._quote == QUOTE or (not self._quote and character == "<"):
                found = self._waiting.find(QUOTE, position)
                if found < 0 or (not self._quote and found > position):
                    held = num_open(self._waiting[position:], QUOTE)
                    position = size - held if self._quote or held else position + 1
                    if held:
                        break
                    continue
                self._quote = "" if self._quote else QUOTE
                position = found + len(QUOTE)
                continue
            self._mark(character)
            if not self._depth or (self._depth == 1 and character == "," and not self._quote):
                self._piece.append(self._waiting[begin:position])
                begin = position + 1
                if not self._end_argument(is_last=not self._depth):
                    return self._fail()
            position += 1
        self._piece.append(self._waiting[begin:position])
        self._take(position)
        if not self._depth:
            self._write("}")
            self.progress = Progress.DONE
        return False

    def _mark(self, character: str) -> None:
        if self._quote:
            if not self._is_escaped and character == self._quote:
                self._quote = ""
            self._is_escaped = not self._is_escaped and character == "\\"
        elif character == '"':
            self._quote = character
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1

    def _end_argument(self, *, is_last: bool) -> bool:
        text = "".join(self._piece) + "}"
        self._piece.clear()
        try:
            position = _after_space(text, 0)
            if is_last and text[position] == "}":
                return True  # no arguments, or a comma after the last
            key, position = _key(text, position)
            value, position = _value(text, position, _MAX_DEPTH)
            if text[_after_space(text, position) :] != "}":
                return False
        except (ValueError, IndexError):
            return False
        self._write(f"{', ' if self._has_arguments else ''}{key}{value}")
        self._has_arguments = True
        return True


def _value(text: str, position: int, depth: int) -> tuple[str, int]:
    """The JSON text of the value at a position, and where it ends. Raises: ValueError, IndexError if there is none."""
    position = _after_space(text, position)
    if text.startswith(QUOTE, position):
        end = text.index(QUOTE, position + len(QUOTE))
        return dumped(text[position + len(QUOTE) : end]), end + len(QUOTE)
    if text[position] == '"':
        value, end = json.JSONDecoder(strict=False).raw_decode(text, position)
        return dumped(value), end
    if text[position] in "{[":
        if not depth:
            raise ValueError(f"more than {_MAX_DEPTH} brackets")
        return _entries(text, position, depth)
    match = _WORD.match(text, position)
    word = "" if match is None else match[0].strip()
    if match is None or not word:
        raise ValueError("no value")
    known = word if json_value(word) is not None else _WORDS.get(word)
    return dumped(word) if known is None else known, match.end()


def _entries(text: str, position: int, depth: int) -> tuple[str, int]:
    opening = text[position]
    closing, entries = "}" if opening == "{" else "]", []
    position = _after_space(text, position + 1)
    while text[position] != closing:
        key = ""
        if opening == "{":
            key, position = _key(text, position)
        value, position = _value(text, position, depth - 1)
        entries.append(f"{key}{value}")
        position = _after_space(text, position)
        if text[position] == ",":
            position = _after_space(text, position + 1)
        elif text[position] != closing:
            raise ValueError("neither a comma nor the end")
    return f"{opening}{', '.join(entries)}{closing}", position + 1


def _key(text: str, position: int) -> tuple[str, int]:
    if text.startswith((QUOTE, '"'), position):
        key, position = _value(text, position, 1)
    else:
        match = _KEY.match(text, position)
        if match is None:
            raise ValueError("no key")
        key, position = dumped(match[0]), match.end()
    position = _after_space(text, position)
    if text[position] != ":":
        raise ValueError("no colon")
    return f"{key}: ", position + 1


def _after_space(text: str, position: int) -> int:
    while text[position].isspace():
        position += 1
    return position
