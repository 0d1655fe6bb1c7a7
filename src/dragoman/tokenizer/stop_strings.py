"""Finds stop strings in text that grows token by token, and the part of it that must not be shown yet.

A match ends where any stop string becomes complete first; of several that end there, the longest counts, as it starts
earliest. `StopScanner` has one owner; `StopOnTokens` serves engine threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dragoman.tokenizer.base import TokenPieces
from dragoman.types import StopStrings


class StopMatch(NamedTuple):
    """A stop string in the text, in characters from the beginning of the scanner's tail before the last `push`."""

    stop: str
    start: int
    end: int


class StopScanner:
    """Watches one sequence's text. `tail`: the longest end of the text that may still become a stop string."""

    __slots__ = ("_first_characters", "_stops", "tail")

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._stops = sorted(stops, key=len, reverse=True)  # of several that end together, the longest wins
        self._first_characters = frozenset(stop[0] for stop in stops)
        self.tail = ""

    def push(self, text: str) -> StopMatch | None:
        """Take in the next text; the match that it completes, if any. After a match the scanner is spent."""
        if not self.tail and self._first_characters.isdisjoint(text):
            return None
        seen = self.tail + text
        if (match := self._match(seen)) is None:
            self.tail = self._open_tail(seen)
        return match

    def skip(self, text: str) -> None:
        """Take in text that must not end the sequence; a stop string may still begin in it."""
        self.tail = self._open_tail(self.tail + text)

    def _match(self, seen: str) -> StopMatch | None:
        best: StopMatch | None = None
        for stop in self._stops:
            start = seen.find(stop, max(0, len(self.tail) - len(stop) + 1))
            if start >= 0 and (best is None or start + len(stop) < best.end):
                best = StopMatch(stop, start, start + len(stop))
        return best

    def _open_tail(self, seen: str) -> str:
        if self._first_characters.isdisjoint(seen):
            return ""
        begin = min(_open_position(seen, stop) for stop in self._stops)
        return seen[begin:]


def _open_position(seen: str, stop: str) -> int:
    """The start of the longest end of `seen` that is a proper beginning of `stop`; len(seen) if none is."""
    position = max(0, len(seen) - len(stop) + 1)
    while (position := seen.find(stop[0], position)) >= 0:
        if stop.startswith(seen[position:]):
            return position
        position += 1
    return len(seen)


class StopOnTokens:
    """Implements `types.StopCriterion`. Matches before `min_tokens` or in the `unsearched` parts do not count."""

    def __init__(self, pieces: TokenPieces, stop: StopStrings, min_tokens: int = 0) -> None:
        self._pieces = pieces
        self._stops = [text.encode() for text in stop.strings]
        self._longest = max(map(len, self._stops))
        self._min_tokens = min_tokens
        self._skips_special = stop.skip_special_tokens
        marks = () if stop.unsearched is None else stop.unsearched.marks
        self._inside = "" if stop.unsearched is None else stop.unsearched.inside
        self._ends = {begin.encode(): end.encode() for begin, end in marks}
        self._marks = frozenset((*self._ends, *self._ends.values(), self._inside.encode()))

    def __call__(self, token_ids: Sequence[int]) -> bool:
        if len(token_ids) < max(1, self._min_tokens):
            return False
        last = self._bytes(token_ids[-1])
        parts, size = [last], 0
        for position in range(len(token_ids) - 2, -1, -1):
            if size >= self._longest - 1:
                break
            parts.append(self._bytes(token_ids[position]))
            size += len(parts[-1])
        window = b"".join(reversed(parts))
        starts = [start for stop in self._stops if (start := window.find(stop, max(0, size - len(stop) + 1))) >= 0]
        return bool(starts) and (not self._ends or self._is_searched(token_ids, len(window) - min(starts)))

    def _is_searched(self, token_ids: Sequence[int], num_last: int) -> bool:
        text = b"".join(map(self._bytes, token_ids))
        place, position, end = len(text) - num_last, 0, self._inside.encode()
        while True:
            if end:
                found = text.find(end, position)
                if found < 0 or found >= place:
                    return False
                position, end = found + len(end), b""
            begins = [(found, begin) for begin in self._ends if (found := text.find(begin, position)) >= 0]
            if not begins or min(begins)[0] >= place:
                return True
            found, begin = min(begins)
            position, end = found + len(begin), self._ends[begin]
            if not end:
                return False

    def _bytes(self, token_id: int) -> bytes:
        token_bytes, _, is_special = self._pieces[int(token_id)]
        return b"" if is_special and self._skips_special and token_bytes not in self._marks else token_bytes
