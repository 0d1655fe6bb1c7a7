"""Finds earlier occurrences of a sequence's end and the tokens after them, for DRY. On the engine thread only.

A token costs one pass through the searched tokens: each repeat extends one that ended a token earlier.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dragoman.types import SequenceBreaker

IdArray = npt.NDArray[np.int64]
_SPARE = 256  # spare tokens whenever the array grows


class Breakers:
    """Token sequences that interrupt repetitions. Immutable."""

    def __init__(self, breakers: Sequence[SequenceBreaker]) -> None:
        heads_by_tail: dict[tuple[int, ...], set[int]] = {}
        for one in breakers:
            heads_by_tail.setdefault(one.tail, set()).update(one.heads)
        self.single_ids: IdArray = np.array(sorted(heads_by_tail.get((), ())), dtype=np.int64)
        self._rules = [(heads, list(tail)) for tail, heads in heads_by_tail.items()]
        self._longest = 1 + max(map(len, heads_by_tail), default=0)

    def stands_before(self, tokens: IdArray, end: int) -> bool:
        last = tokens[max(0, end - self._longest) : end].tolist()
        return any(
            len(tail) < len(last) and last[-1 - len(tail)] in heads and last[len(last) - len(tail) :] == tail
            for heads, tail in self._rules
        )

    def last_end(self, tokens: IdArray) -> int:
        """The end of the last breaker among these tokens, 0 if there is none."""
        found = 0
        for heads, tail in self._rules:
            places = np.arange(tokens.size)
            for offset, token_id in enumerate(reversed(tail)):
                places = places[(tokens[places - offset] == token_id) & (places > offset)]
            is_head = np.isin(tokens[places - len(tail)], list(heads))
            found = max(found, 1 + int(places[is_head].max(initial=-1)))
        return found


class TokenRepeats:
    """A sequence's tokens, and the earlier places that end with the same tokens. `window`: tokens to search; -1 = all.

    `_ends` are the indices of the last tokens there, ascending; `_lengths` the numbers of equal tokens.
    """

    __slots__ = ("_breakers", "_ends", "_lengths", "_size", "_tokens", "_unbroken", "_window")

    def __init__(self, token_ids: Sequence[int], window: int, breakers: Breakers) -> None:
        self._breakers = breakers
        self._window = window
        self._size = len(token_ids)
        self._tokens: IdArray = np.zeros(self._size + _SPARE, dtype=np.int64)
        self._tokens[: self._size] = token_ids
        begin = self._begin()
        lengths = np.array(_equal_at_the_end(self._tokens[begin : self._size].tolist()), dtype=np.int64)
        self._ends: IdArray = np.flatnonzero(lengths)
        self._lengths: IdArray = lengths[self._ends]
        self._ends += begin
        self._unbroken = self._size - breakers.last_end(self._tokens[: self._size])  # tokens after the last breaker

    def _begin(self) -> int:
        return 0 if self._window < 0 else max(0, self._size - self._window)

    def add(self, token_id: int) -> None:
        """Append one token. Copies that share the tokens see it only if they are made afterwards."""
        if self._size == self._tokens.size:
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
        last = self._size
        self._tokens[last] = token_id
        self._size += 1
        begin = self._begin()
        ends = np.flatnonzero(self._tokens[begin:last] == token_id) + begin
        lengths = np.ones(ends.size, dtype=np.int64)
        if self._ends.size and ends.size:
            places = np.minimum(np.searchsorted(self._ends, ends - 1), self._ends.size - 1)
            lengths += np.where(self._ends[places] == ends - 1, self._lengths[places], 0)
        self._ends, self._lengths = ends, lengths
        self._unbroken += 1
        if self._breakers.stands_before(self._tokens, self._size):
            self._unbroken = 0

    def continued(self, allowed_length: int) -> tuple[IdArray, IdArray]:
        """The tokens that followed repeats of at least `allowed_length` tokens, and the lengths of these, ascending."""
        lengths = np.minimum(self._lengths, self._ends - (self._begin() - 1))  # only searched tokens count
        lengths = np.minimum(lengths, self._unbroken)
        is_long = lengths >= allowed_length
        followers, lengths = self._tokens[self._ends[is_long] + 1], lengths[is_long]
        if followers.size:
            is_free = ~np.isin(followers, self._breakers.single_ids)
            followers, lengths = followers[is_free], lengths[is_free]
            order = np.argsort(lengths, kind="stable")
            followers, lengths = followers[order], lengths[order]
        return followers, lengths

    def copy(self, *, shares_tokens: bool = False) -> TokenRepeats:
        other = TokenRepeats.__new__(TokenRepeats)
        other._breakers, other._window, other._size = self._breakers, self._window, self._size
        other._tokens = self._tokens if shares_tokens else self._tokens.copy()
        other._ends, other._lengths, other._unbroken = self._ends, self._lengths, self._unbroken
        return other


def _equal_at_the_end(token_ids: list[int]) -> list[int]:
    """For every place but the last: the number of tokens up to it that equal those up to the end; 0 for the last.

    Source: the Z algorithm, Gusfield 1997, "Algorithms on Strings, Trees and Sequences", section 1.4, on the reversed
    list.
    """
    tokens, size = token_ids[::-1], len(token_ids)
    found = [0] * size
    left = right = 0  # the run of equal tokens that extends furthest
    for place in range(1, size):
        length = min(right - place, found[place - left]) if place < right else 0
        while place + length < size and tokens[length] == tokens[place + length]:
            length += 1
        if place + length > right:
            left, right = place, place + length
        found[place] = length
    return found[::-1]
