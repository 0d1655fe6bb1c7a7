"""Reads the content of a conversation's messages, and writes it in the two forms that chat templates take.

Markers stand for pictures in a prompt: the same text for each, or one with the picture's number in it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, get_args

from dragoman.errors import InvalidParameter, InvalidRequest, TextOnly, UnsupportedFeature
from dragoman.types import Detail

PART_SEPARATOR = "\n"  # between the text parts of one message. Source: LMI's chat handler
DETAILS: tuple[Detail, ...] = get_args(Detail)


class PicturePart(NamedTuple):
    path: str
    url: str
    detail: Detail

    @property
    def address_path(self) -> str:
        return f"{self.path}.image_url.url"


Part = str | PicturePart


def picture_parts(messages: Sequence[Mapping[str, Any]]) -> list[PicturePart]:
    """The pictures of a conversation in order. Raises: InvalidRequest for malformed content."""
    return [
        part
        for position, message in enumerate(messages)
        if not isinstance(message.get("content"), str)
        for part in read_content(message.get("content"), position)
        if isinstance(part, PicturePart)
    ]


def read_content(content: Any, position: int) -> list[Part]:
    """The texts and pictures of the message at `position`. Raises: InvalidRequest with the malformed part."""
    if content is None or isinstance(content, str):
        return [content] if content else []
    path = f"messages[{position}].content"
    if not isinstance(content, Sequence):
        kind = type(content).__name__
        raise InvalidRequest(f"{path} must be a string, null or an array of parts, got {kind}", param="messages")
    return [_part(part, f"{path}[{i}]") for i, part in enumerate(content)]


def as_text(parts: Sequence[Part], markers: Sequence[str], found: Sequence[str], position: int) -> str:
    """The parts as one text, after the `markers` of pictures that are not in it (`found`). Raises: InvalidRequest."""
    if not markers:
        return joined_text(parts)
    text, lines, there = joined_text(parts), list[str](), Counter(found)
    for marker, count in Counter(markers).items():
        num_there = there[marker]
        if num_there > count:
            raise InvalidRequest(
                f"messages[{position}].content must hold {marker} at most {count} times, once for each of its images, "
                f"got {num_there}",
                param="messages",
            )
        lines += [marker] * (count - num_there)
    return "\n".join([*lines, text] if text else lines)


def as_parts(parts: Sequence[Part]) -> list[dict[str, str]]:
    fitted: list[dict[str, str]] = []
    for is_text, run in groupby(parts, key=lambda part: isinstance(part, str)):
        neighbours = list(run)
        if is_text:
            fitted.append({"type": "text", "text": joined_text(neighbours)})
        else:
            fitted += [{"type": "image"} for _ in neighbours]
    return fitted


def joined_text(parts: Sequence[Part]) -> str:
    return PART_SEPARATOR.join(part for part in parts if isinstance(part, str))


def num_pictures_in(parts: Sequence[Part]) -> int:
    return sum(isinstance(part, PicturePart) for part in parts)


def refuse_pictures(parts: Sequence[Part]) -> None:
    for part in parts:
        if isinstance(part, PicturePart):
            message = f"{part.path} of type image_url is not supported: this model takes text only"
            raise TextOnly(message, param=part.path)


def _part(part: Any, path: str) -> Part:
    match part:
        case str(text):
            return text
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image_url", "image_url": str(url)}:
            return PicturePart(path, url, "auto")
        case {"type": "image_url", "image_url": {"url": str(url), **rest}}:
            return PicturePart(path, url, _detail(rest.get("detail"), path))
        case {"type": "image_url"}:
            raise InvalidRequest(f"{path}.image_url must be an object with a url", param="messages")
        case {"type": str(kind)} if kind != "text":
            raise UnsupportedFeature(
                f"{path} of type {kind} is not supported: it must be text or image_url", param="messages"
            )
    raise InvalidRequest(f"{path} must be an object with a type and a text", param="messages")


def _detail(detail: Any, path: str) -> Detail:
    if detail is None:
        return "auto"
    for known in DETAILS:
        if detail == known:
            return known
    name = f"{path}.image_url.detail"
    raise InvalidParameter(f"{name} must be {', '.join(DETAILS[:-1])} or {DETAILS[-1]}, got {detail!r}", param=name)


NUMBER = "{}"


class PictureMarker:
    """`text`: the marker; `NUMBER` in it stands for the picture's number in the conversation, from 1. Immutable."""

    def __init__(self, text: str) -> None:
        before, number, after = text.partition(NUMBER)
        self.is_numbered = bool(number)
        self._text = text
        digits = "([0-9]+)" if number else "()"
        self._pattern = re.compile(re.escape(before) + digits + re.escape(after))

    def of(self, first: int, count: int) -> list[str]:
        return [self._text.replace(NUMBER, str(number), 1) for number in range(first, first + count)]

    def found(self, text: str) -> list[str]:
        return [match[0] for match in self._pattern.finditer(text)]

    def split(self, text: str) -> tuple[list[str], list[int]]:
        """The pieces between the markers of a text, and the places of their pictures in the conversation, from 0."""
        pieces = self._pattern.split(text)
        return pieces[::2], [int(number) - 1 if number else place for place, number in enumerate(pieces[1::2])]

    def wanted(self, count: int) -> str:
        if not self.is_numbered:
            return f"{count} times {self._text}"
        markers = self.of(1, count)
        return f"once {markers[0]}" if count == 1 else f"once each of {markers[0]} to {markers[-1]}"
