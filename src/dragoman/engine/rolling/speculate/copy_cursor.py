"""A cursor in copied text: follows the passage that a sequence copies, and returns to it after a deviation.

A copy often deviates for a few tokens, at a changed name or value. So it resumes where the next token occurs shortly
after the deviation; elsewhere a single equal token means nothing. On the engine thread only.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Rows
from typing import Protocol

from dragoman.engine.rolling.speculate.match_finder import MAX_LENGTH, Match
from dragoman.engine.rolling.speculate.proposer import NUM_STRENGTHS, Basis, evidence

# The best of the tried values, by tokens per step on edits, JSON and agent loops, where resuming gains 2, 22 and 7 %.
_WORTH_FINDING_BACK = 4  # tokens that agreed before the deviation; fewer often agree by chance
_NUM_ASIDE = 8  # tokens after which an interrupted copy is given up
_NUM_SKIPPED = 16  # tokens of the passage where the copy may resume, including the one before


class Source(Protocol):
    values: array[int]


class CopyCursor:
    """A place in a text. `length`: the number of agreeing tokens before it, at most MAX_LENGTH; 0 = no place."""

    __slots__ = ("_left_at", "_left_source", "_num_aside", "_place", "_source", "length")

    def __init__(self) -> None:
        self.length = 0
        self._source: Source | None = None
        self._place = 0
        self._left_source: Source | None = None  # of the interrupted passage
        self._left_at = 0
        self._num_aside = 0  # tokens since the deviation

    def is_in(self, sources: Rows[Source]) -> bool:
        return all(source is None or source in sources for source in (self._source, self._left_source))

    def follow(self, new: array[int]) -> None:
        """Advance by the sequence's `new` tokens, or leave the passage if it differs."""
        self._num_aside += len(new)
        source = self._source
        if source is None:
            return
        passage = source.values[self._place : self._place + len(new)]
        if passage == new:
            self._place += len(new)
            self.length = min(self.length + len(new), MAX_LENGTH)
            return
        num_held = _num_agreeing(passage, new)
        if self.length + num_held >= _WORTH_FINDING_BACK:
            self._left_source, self._left_at = source, self._place + num_held
            self._num_aside = len(new) - num_held
        self._source, self._place, self.length = None, 0, 0

    def move_to(self, source: Source, match: Match) -> None:
        self._source, self._place, self.length = source, match.end, match.length

    def find_back(self, value: int, end: int | None = None) -> None:
        """Resume an interrupted copy if `value` occurs shortly after the deviation, before `end`."""
        source = self._left_source
        if source is None or self._num_aside > _NUM_ASIDE:
            return
        begin = self._left_at
        passage = source.values[begin : begin + _NUM_SKIPPED if end is None else min(begin + _NUM_SKIPPED, end)]
        if value in passage:
            self.move_to(source, Match(begin + passage.index(value) + 1, 1))

    def guesses(self, num_values: int) -> array[int]:
        return array("q") if self._source is None else self._source.values[self._place : self._place + num_values]


def _num_agreeing(passage: array[int], new: array[int]) -> int:
    return next(
        (place for place, pair in enumerate(zip(passage, new, strict=False)) if pair[0] != pair[1]), len(passage)
    )


def copied_evidence(basis: Basis, length: int, num_guesses: int) -> list[int]:
    """The evidence of guesses after `length` agreeing tokens: each guess adds one for the next."""
    first, last = evidence(basis, length), evidence(basis, NUM_STRENGTHS)
    num_rising = min(num_guesses, last - first)  # strengths are consecutive numbers, up to a maximum
    return [*range(first, first + num_rising), *[last] * (num_guesses - num_rising)]
