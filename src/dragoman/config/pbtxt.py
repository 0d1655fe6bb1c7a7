"""Reads protocol buffers' text format without a schema: numbers and words stay texts.

Source: protobuf.dev/reference/protobuf/textformat-spec.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_BYTES = 1 << 20  # of a file; real ones have some kilobytes
_MAX_DEPTH = 64

_TOKEN = re.compile(
    r"""(?P<blank>[\s]+|\#[^\n]*)
      | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<word>[-+]?[A-Za-z0-9_.][A-Za-z0-9_.+/-]*)
      | (?P<sign>[][{}<>:,;])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPES = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_CLOSING = {"{": "}", "<": ">"}


class PbtxtError(ValueError):
    """The text has another format; the message says where."""


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    value: str | Message
    line: int


@dataclass(frozen=True, slots=True)
class Message:
    """Fields in order; names may repeat."""

    fields: tuple[Field, ...] = field(default=())

    def messages(self, name: str) -> Iterator[Message]:
        return (field.value for field in self.fields if field.name == name and isinstance(field.value, Message))


def parse_pbtxt(text: str) -> Message:
    """The message in the text. Names of extensions and Any stay in brackets, without blanks. Raises: PbtxtError."""
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._place = 0

    def whole(self) -> Message:
        message = self._message("", 0)
        if self._place < len(self._tokens):
            raise self._error("a field")
        return message

    def _message(self, end: str, depth: int) -> Message:
        if depth > _MAX_DEPTH:
            raise PbtxtError(f"line {self._line()}: messages are nested more than {_MAX_DEPTH} deep")
        fields: list[Field] = []
        while self._place < len(self._tokens) and self._peek() != end:
            line = self._line()
            name = self._name()
            has_colon = self._skip(":")
            fields += [Field(name, value, line) for value in self._values(has_colon, depth)]
            _ = self._skip(",") or self._skip(";")
        return Message(tuple(fields))

    def _name(self) -> str:
        if not self._skip("["):
            return self._word()
        parts = []
        while self._peek() != "]":
            parts.append(self._word())
        self._expect("]")
        return f"[{''.join(parts)}]"

    def _values(self, has_colon: bool, depth: int) -> list[str | Message]:
        if not self._skip("["):
            return [self._value(has_colon, depth)]
        values: list[str | Message] = []
        while self._peek() != "]":
            values.append(self._value(has_colon, depth))
            if not self._skip(","):
                break
        self._expect("]")
        return values

    def _value(self, has_colon: bool, depth: int) -> str | Message:
        closing = _CLOSING.get(self._peek())
        if closing is not None:
            self._place += 1
            message = self._message(closing, depth + 1)
            self._expect(closing)
            return message
        if not has_colon:
            raise self._error("a colon or a message")
        if self._kind() != "string":
            return self._word()
        pieces = []
        while self._kind() == "string":
            pieces.append(_content(self._peek()))
            self._place += 1
        try:
            return b"".join(pieces).decode()
        except UnicodeDecodeError:
            raise self._error("a string of UTF-8") from None

    def _word(self) -> str:
        if self._kind() != "word":
            raise self._error("a name or a value")
        self._place += 1
        return self._tokens[self._place - 1][1]

    def _skip(self, sign: str) -> bool:
        found = self._kind() == "sign" and self._peek() == sign
        self._place += found
        return found

    def _expect(self, sign: str) -> None:
        if not self._skip(sign):
            raise self._error(f"`{sign}`")

    def _peek(self) -> str:
        return self._tokens[self._place][1] if self._place < len(self._tokens) else ""

    def _kind(self) -> str:
        return self._tokens[self._place][0] if self._place < len(self._tokens) else ""

    def _line(self) -> int:
        return self._tokens[min(self._place, len(self._tokens) - 1)][2] if self._tokens else 1

    def _error(self, wanted: str) -> PbtxtError:
        found = f"`{self._peek()[:40]}`" if self._place < len(self._tokens) else "the end"
        return PbtxtError(f"line {self._line()}: {found} stands where {wanted} is expected")


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """Kind, text and line of each; blanks around the slash of a type's name fall away with the other blanks."""
    place, line = 0, 1
    while place < len(text):
        match = _TOKEN.match(text, place)
        kind = match.lastgroup if match else "word" if text[place] == "/" else None
        if kind is None:
            raise PbtxtError(f"line {line}: `{text[place]}` is unknown")
        piece = match.group() if match else "/"
        if kind != "blank":
            yield kind, piece, line
        line += piece.count("\n")
        place += len(piece)


def _content(quoted: str) -> bytes:
    return _ESCAPE.sub(_unescaped, quoted[1:-1].encode())


def _unescaped(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, code, char = match.groups()
    if octal or hexadecimal:
        return bytes([int(octal or hexadecimal, 8 if octal else 16) & 0xFF])
    return chr(int(code, 16)).encode("utf-8", "replace") if code else _ESCAPES.get(char, char)
