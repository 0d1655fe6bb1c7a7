"""Decodes JSON of clients, and explains in words why a text is not JSON. Called by every dialect.

Refuses too much structure first: 60 MB are decoded fast if they are one text, but as lists take half a minute.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping
from itertools import accumulate, islice
from typing import Any

import msgspec

MAX_NESTING = 100  # levels of arrays and objects; more would exhaust the decoder's stack
MAX_CONTAINERS = 100_000  # arrays and objects. 10,000 messages with a part each are 30,000
MAX_NAMES = 350_000  # of fields of objects, all together. A logit_bias may have 300,000
MAX_VALUES = 1_000_000  # of any kind: token ids, mostly. OpenAI takes 300,000 to embed
MAX_FIELDS = 1_000  # of a body, whose names are looked at one by one
MAX_DIGITS = 200  # of a number: the time that they take grows with the square

_LITTLE = 16 * 1024  # bytes that take no time, whatever they hold
_PIECE = 256 * 1024  # bytes that are looked at together
_ALL = bytes(range(256))
_NO_BRACKETS = bytes(byte for byte in _ALL if byte not in b"[]{}")
_STEPS = bytes(1 if byte in b"[{" else 255 for byte in _ALL)  # down a level and, as a signed byte, up
_DIGITS = bytes(byte if byte not in b"0123456789" else ord("0") for byte in _ALL)
_LONG_NUMBER = b"0" * (MAX_DIGITS + 1)

_SHOWN_LENGTH, _SHOWN_ITEMS, _SHOWN_LEVELS = 200, 20, 4  # of a value that an error repeats, before it is cut to a line

# The UTF-32 marks begin with a UTF-16 one; which of them it is matters to nobody.
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PLACE = re.compile(r"\(byte (\d+)\)")
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|\xed[\xa0-\xbf][\x80-\xbf]"
)


class NotJson(ValueError):
    """The text is not JSON. `is_slip`: a common cause that is hard to see. `problem`: json, slip, nesting or structure."""

    def __init__(self, reason: str, *, is_slip: bool = False) -> None:
        super().__init__(reason)
        self.is_slip = is_slip
        self.problem = "slip" if is_slip else "json"

    def of(self, subject: str) -> str:
        return f"{subject} is not valid JSON: {self}"


class TooMuchJson(NotJson):
    """The text has too much structure to be read."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.problem = "structure"

    def of(self, subject: str) -> str:
        return f"{subject} is too large in structure: {self}"


class NestedTooDeep(TooMuchJson):
    """The text is nested more than `MAX_NESTING` levels deep."""

    def __init__(self) -> None:
        super().__init__(f"it is nested more than {MAX_NESTING} levels deep")
        self.problem = "nesting"


def decode_json(content: bytes | msgspec.Raw, kind: Any = Any) -> Any:
    """The value of a JSON text, as a `kind`. Raises: NotJson, TooMuchJson, msgspec.ValidationError."""
    text = bytes(content)
    check_structure(text)
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if kind is not Any and isinstance(error, msgspec.ValidationError):
            raise
        raise not_json(text, error) from error


def check_structure(content: bytes) -> None:
    """Raises: TooMuchJson for too many values, levels, or digits in a number. Text that is not JSON may pass."""
    if content[:_PIECE].lstrip()[:1] not in (b"{", b"[", b'"', b""):
        return  # a number, or not JSON
    is_flat = content.count(b"[") + content.count(b"{") <= MAX_NESTING
    if is_flat and (len(content) <= _LITTLE or (len(content) <= _PIECE and not _has_long_number(content))):
        return  # as nearly always
    depth = num_opened = num_closed = num_commas = num_names = num_texts = begin = 0
    is_text = False
    while begin < len(content):
        end = _end_of_piece(content, begin)
        piece = content[begin:end]
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        outside = b"".join(parts[is_text::2])
        is_text ^= len(parts) % 2 == 0
        num_opened += outside.count(b"[") + outside.count(b"{")
        num_closed += outside.count(b"]") + outside.count(b"}")
        num_commas += outside.count(b",")
        num_names += outside.count(b":")
        num_texts += len(parts) // 2
        steps = memoryview(outside.translate(_STEPS, _NO_BRACKETS)).cast("b")
        *_, depth = levels = list(accumulate(steps, initial=depth))
        if max(levels) > MAX_NESTING:
            raise NestedTooDeep
        if max(num_opened, num_closed) > MAX_CONTAINERS:
            raise TooMuchJson(f"it holds more than {MAX_CONTAINERS} arrays and objects")
        if num_names > MAX_NAMES:
            raise TooMuchJson(f"its objects have more than {MAX_NAMES} fields")
        if num_commas >= MAX_VALUES or num_texts > 2 * MAX_VALUES:  # a field has two: its name and its value
            raise TooMuchJson(f"it holds more than {MAX_VALUES} values")
        if _has_long_number(outside):
            raise TooMuchJson(f"it holds a number of more than {MAX_DIGITS} digits")
        begin = end


def _end_of_piece(content: bytes, begin: int) -> int:
    """The end of the piece at `begin`, not between a backslash and the character that it escapes."""
    end = begin + _PIECE
    piece = content[begin:end]
    num_backslashes = len(piece) - len(piece.rstrip(b"\\"))
    return min(end + num_backslashes % 2, len(content))


def _has_long_number(content: bytes) -> bool:
    return _LONG_NUMBER in content.translate(_DIGITS)


def check_fields(fields: Mapping[str, Any]) -> None:
    """Raises: TooMuchJson for an object with more fields than are read one by one."""
    if len(fields) > MAX_FIELDS:
        raise TooMuchJson(f"it has {len(fields)} fields, and at most {MAX_FIELDS} are read")


def shown_json(value: object, length: int) -> str:
    """The value as an error quotes it: one line of at most `length` characters."""
    text = json.dumps(_beginning(value, _SHOWN_LEVELS), ensure_ascii=False, default=str)
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _beginning(value: object, levels: int) -> object:
    match value:
        case str():
            return value[:_SHOWN_LENGTH]
        case list() | tuple():
            return [_beginning(entry, levels - 1) for entry in value[:_SHOWN_ITEMS]] if levels else []
        case dict():
            pairs = islice(value.items(), _SHOWN_ITEMS if levels else 0)
            return {str(name)[:_SHOWN_LENGTH]: _beginning(entry, levels - 1) for name, entry in pairs}
    return value


def not_json(content: bytes, error: Exception) -> NotJson:
    """The reason why decoding `content` raised `error`."""
    if isinstance(error, RecursionError):
        return NestedTooDeep()
    if content.startswith(_MARKS):
        return NotJson("it begins with a byte-order mark: send UTF-8 without one", is_slip=True)
    text = str(error)
    if _may_be_half(error) and (place := _half_in(content)) is not None:
        reason = f"it holds half of a surrogate pair (byte {place}), which is no character: send both halves"
        return NotJson(reason, is_slip=True)
    if "trailing comma" in text:
        return NotJson(text.replace("JSON is malformed: ", "there is a "), is_slip=True)
    if isinstance(error, UnicodeDecodeError):
        return NotJson(f"it is not UTF-8: {error.reason}")
    if "truncated" in text:
        return NotJson("it is empty" if not content or content.isspace() else "it ends too early")
    reason = text.removeprefix("JSON is malformed: ").partition(" - at ")[0]
    if (told := _PLACE.search(reason)) and content.startswith(b"'", int(told[1])):
        return NotJson(f"texts stand in double quotes, not in single ones (byte {told[1]})")
    return NotJson(reason)


def _half_in(content: bytes) -> int | None:
    """The place of half a surrogate pair. Searches piece by piece, so that other threads can run."""
    if b"\\u" not in content and b"\xed" not in content:
        return None
    for begin in range(0, len(content), _PIECE):
        found = _LONE_SURROGATE.search(content, begin, begin + _PIECE + 12)  # the other half may be in the next piece
        if found is not None and found.start() < begin + _PIECE:
            return found.start()
    return None


def _may_be_half(error: Exception) -> bool:
    """True if half of a surrogate pair may have caused the error."""
    return isinstance(error, UnicodeDecodeError) or any(
        word in str(error) for word in ("surrogate", "hex", "truncated")
    )
