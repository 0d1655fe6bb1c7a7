"""A cursor in copied text: follows the passage that a sequence copies as it grows, and finds back into it.

Does: keep the place and how long both agree, and guess that they go on to. Does not: search for passages (`match_finder`)
or know whose they are. Used by `own_text` and `recent_texts`, on the engine thread only.

A copy is often left for a few tokens, where a name was changed or a value is another one, and then goes on. So when the next
token stands a little behind the place where a copy was left, the copy is taken up there. Elsewhere a single token tells
nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Rows
from typing import Protocol

from dragoman.engine.rolling.speculate.match_finder import MAX_LENGTH, Match
from dragoman.engine.rolling.speculate.proposer import NUM_STRENGTHS, Basis, evidence

# The best of those tried, by tokens per step on edits, JSON and agent loops, where finding back gives 2, 22 and 7 % more.
_WORTH_FINDING_BACK = 4  # tokens that had agreed when the copy was left; fewer often agree by chance
_NUM_ASIDE = 8  # tokens after which a copy that was left is given up
_NUM_SKIPPED = 16  # tokens of the passage among which the sequence may come back, the one before included


class Source(Protocol):
    """A text that is copied from, which may grow."""

    values: array[int]


class CopyCursor:
    """A place in a text. `length`: the tokens that agree before it, at most MAX_LENGTH; 0 = no place."""

    __slots__ = ("_left_at", "_left_source", "_num_aside", "_place", "_source", "length")

    def __init__(self) -> None:
        self.length = 0
        self._source: Source | None = None
        self._place = 0
        self._left_source: Source | None = None  # of the passage that was left
        self._left_at = 0
        self._num_aside = 0  # tokens since then

    def is_in(self, sources: Rows[Source]) -> bool:
        """True if it knows no text but these."""
        return all(source is None or source in sources for source in (self._source, self._left_source))

    def follow(self, new: array[int]) -> None:
        """The sequence has grown by `new`; move along, or leave the passage that goes on otherwise."""
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
        """Copy from there from now on."""
        self._source, self._place, self.length = source, match.end, match.length

    def find_back(self, value: int, end: int | None = None) -> None:
        """If the sequence's last value stands behind the place where a passage was left, go there.

        `end`: the passage's text counts up to there only, None = all of it.
        """
        source = self._left_source
        if source is None or self._num_aside > _NUM_ASIDE:
            return
        begin = self._left_at
        passage = source.values[begin : begin + _NUM_SKIPPED if end is None else min(begin + _NUM_SKIPPED, end)]
        if value in passage:
            self.move_to(source, Match(begin + passage.index(value) + 1, 1))

    def guesses(self, num_values: int) -> array[int]:
        """The next values at the cursor: at most `num_values`, fewer at the text's end."""
        return array("q") if self._source is None else self._source.values[self._place : self._place + num_values]


def _num_agreeing(passage: array[int], new: array[int]) -> int:
    return next(
        (place for place, pair in enumerate(zip(passage, new, strict=False)) if pair[0] != pair[1]), len(passage)
    )


def copied_evidence(basis: Basis, length: int, num_guesses: int) -> list[int]:
    """The evidence of guesses behind `length` tokens that agree: each of them counts for the next."""
    first, last = evidence(basis, length), evidence(basis, NUM_STRENGTHS)
    num_rising = min(num_guesses, last - first)  # strengths are neighbouring numbers, up to the last
    return [*range(first, first + num_rising), *[last] * (num_guesses - num_rising)]
