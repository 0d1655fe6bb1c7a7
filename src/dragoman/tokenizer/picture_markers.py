"""Markers of pictures in a rendered prompt: the same text for each, or one with the picture's number in it."""

from __future__ import annotations

import re

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
