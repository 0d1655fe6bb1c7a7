"""Markers in the text of a model, and the search for them in growing text. Knows no format. Values are immutable."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Marker:
    """A piece of text that a model uses as a sign. `token_id`: its control token, None where it is ordinary text."""

    text: str
    token_id: int | None = None

    @property
    def lark(self) -> str:
        return json.dumps(self.text, ensure_ascii=False) if self.token_id is None else f"<[{self.token_id}]>"

    @property
    def regex(self) -> str:
        """The marker's text in a regular expression between slashes."""
        return re.escape(self.text).replace("/", r"\/")

    def up_to(self, name: str, before: str = "") -> str:
        """A Lark rule `name` for any text that ends with the first such marker; `before` (a regex) begins it."""
        if self.token_id is None:
            return f"{name}[lazy]: /{before}(?s:.*){self.regex}/"
        return f"{name}: /{before}(?s:.*)/ {self.lark}"  # no text can hold a control token


class Split(NamedTuple):
    """`after` None = there is no marker yet, and `rest` may be its beginning."""

    before: str
    after: str | None
    rest: str = ""


def split_at(text: str, marker: str, *, is_last: bool) -> Split:
    """Cut growing text at the first marker; what may still become one stays in `rest`, unless nothing follows."""
    position = text.find(marker)
    if position >= 0:
        return Split(text[:position], text[position + len(marker) :])
    size = 0 if is_last else num_open(text, marker)
    return Split(text[: len(text) - size], None, text[len(text) - size :])


def first_marker(text: str, markers: Sequence[str]) -> tuple[int, str] | None:
    """The place of the first marker, and the marker; of two at one place the longer."""
    found = [(position, marker) for marker in markers if (position := text.find(marker)) >= 0]
    return min(found, key=lambda entry: (entry[0], -len(entry[1])), default=None)


def num_open(text: str, *markers: str) -> int:
    """The number of characters at the end of `text` that may begin a marker."""
    longest = max(map(len, markers), default=1)
    for size in range(min(len(text), longest - 1), 0, -1):
        end = text[-size:]
        if any(len(marker) > size and marker.startswith(end) for marker in markers):
            return size
    return 0
