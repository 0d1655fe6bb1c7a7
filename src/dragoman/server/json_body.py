"""Decodes JSON that a client sent, and says in words why some text is none.

Does: decode, within bounds of nesting; explain what people really send: a byte-order mark, half a surrogate pair, a comma
too many, Python's quotes. Does not: know fields or error shapes. Called by every dialect, on the event loop.
"""

from __future__ import annotations

import codecs
import re
from typing import Any

import msgspec

MAX_NESTING = 100  # levels of arrays and objects; more would exhaust the decoder's stack

# The UTF-32 marks begin with a UTF-16 one; which of them it is matters to nobody.
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PLACE = re.compile(r"\(byte (\d+)\)")
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|\xed[\xa0-\xbf][\x80-\xbf]"
)


class NotJson(ValueError):
    """The text is no JSON. `is_slip`: for a reason that nobody sees in their text, and that many clients stumble over."""

    def __init__(self, reason: str, *, is_slip: bool = False) -> None:
        super().__init__(reason)
        self.is_slip = is_slip


class NestedTooDeep(NotJson):
    """The text is nested more than `MAX_NESTING` levels deep."""

    def __init__(self) -> None:
        super().__init__(f"it is nested more than {MAX_NESTING} levels deep")


def decode_json(content: bytes | msgspec.Raw) -> Any:
    """The value of a JSON text. Raises: NotJson, NestedTooDeep."""
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(bytes(content), error) from error
    content = bytes(content)
    if content.count(b"[") + content.count(b"{") > MAX_NESTING and _is_nested_deeper(value, MAX_NESTING):
        raise NestedTooDeep
    return value


def not_json(content: bytes, error: Exception) -> NotJson:
    """The reason why decoding `content` raised `error`."""
    if isinstance(error, RecursionError):
        return NestedTooDeep()
    if content.startswith(_MARKS):
        return NotJson("it begins with a byte-order mark: send UTF-8 without one", is_slip=True)
    text = str(error)
    if _may_be_half(error) and (half := _LONE_SURROGATE.search(content)):
        reason = f"it holds half of a surrogate pair (byte {half.start()}), which is no character: send both halves"
        return NotJson(reason, is_slip=True)
    if "trailing comma" in text:
        return NotJson(text.replace("JSON is malformed: ", "there is a "), is_slip=True)
    if isinstance(error, UnicodeDecodeError):
        return NotJson(f"it is not UTF-8: {error.reason}")
    if "truncated" in text:
        return NotJson("it ends too early" if content.strip() else "it is empty")
    reason = text.removeprefix("JSON is malformed: ").partition(" - at ")[0]
    if (place := _PLACE.search(reason)) and content[int(place[1]) :].startswith(b"'"):
        return NotJson(f"texts stand in double quotes, not in single ones (byte {place[1]})")
    return NotJson(reason)


def _may_be_half(error: Exception) -> bool:
    """Whether the decoder may have stumbled over half of a pair: it looks for the other half in what follows."""
    return isinstance(error, UnicodeDecodeError) or any(
        word in str(error) for word in ("surrogate", "hex", "truncated")
    )


def _is_nested_deeper(value: object, levels: int) -> bool:
    """Walks level by level, so that the check itself needs no stack."""
    level = [value]
    for _ in range(levels):
        level = [child for parent in level for child in _containers(parent)]
        if not level:
            return False
    return True


def _containers(value: object) -> list[object]:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in children if isinstance(child, dict | list)]
