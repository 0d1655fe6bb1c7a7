"""Finds earlier occurrences of a text's end: the longest match, in bounded memory and time. On the engine thread only.

For sizes of 2, 4, 8 and 16 values a table of heads has the latest place for each hash. Each place links to the previous
one with the same hash; of a long chain only the latest are examined. Memory: about 40 bytes per value. Source: the hash
chains of deflate (RFC 1951, section 4), with several sizes. A suffix automaton took 400 bytes, and only 3 matches in
10,000 were shorter without it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Rows
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MAX_LENGTH = 32  # longer matches count as this long
SIZES = (2, 4, 8, 16)  # one more size makes matches no longer, but everything slower by a fifth

_MASK = (1 << 64) - 1
_FACTOR = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: spreads neighbouring values well (Knuth, volume 3, section 6.4)
_POWERS = [pow(_FACTOR, exponent, 1 << 64) for exponent in range(MAX_LENGTH + 2)]


class Match(NamedTuple):
    """The place after an earlier occurrence, and the number of agreeing values before it, at most MAX_LENGTH."""

    end: int
    length: int


NO_MATCH = Match(0, 0)


class MatchFinder:
    """A growing text that can be searched for the end of another one. Finds no matches shorter than two values."""

    def __init__(self, num_heads: int, *, max_candidates: int = 16) -> None:
        """`num_heads`: a power of two, about the number of values. `max_candidates`: places examined per chain."""
        self.values = array("q")
        self._max_candidates = max_candidates
        self._shift = 65 - num_heads.bit_length()
        self._levels = [_Level(size, num_heads) for size in SIZES]

    def __len__(self) -> int:
        return len(self.values)

    def extend(self, values: array[int]) -> None:
        if not values:
            return
        begin, largest = len(self.values), SIZES[-1]
        self.values.extend(values)
        num_before = min(begin, largest)
        fresh = self.values[begin - num_before :]
        hashes = _hashes_by_size(np.frombuffer(fresh, dtype=np.uint64), largest)
        for level in self._levels:
            level.take_in(hashes[level.size.bit_length() - 1][num_before:], self._shift, begin, len(self.values))

    def longest(self, tail: array[int], hashes: Rows[int], limit: int = MAX_LENGTH, longer_than: int = 0) -> Match:
        """The longest occurrence, `longer_than` this, of the end of `tail`; of equally long ones the latest.

        All longer than `limit` count as equal. `hashes` are those of `hashes_of(tail)`.
        """
        if not self.values:
            return NO_MATCH
        shift = self._shift
        places = [level.heads[hashes[level.size] >> shift] if level.size <= len(tail) else 0 for level in self._levels]
        return self._longest(tail[-MAX_LENGTH:], places, limit, longer_than)

    def holds(self, values: array[int]) -> npt.NDArray[np.bool_]:
        """For each of `values`: whether it occurs here, or earlier in `values`, after the same 15 preceding values.

        Only hashes and two values of each place are compared, so single results may be wrong, but hardly several in a
        row.
        """
        level = self._levels[-1]
        size = level.size
        known = np.zeros(len(values), dtype=bool)
        if len(values) < size:
            return known
        texts, stored = np.frombuffer(values, dtype=np.int64), np.frombuffer(self.values, dtype=np.int64)
        first, last = texts[: len(texts) - size + 1], texts[size - 1 :]
        hashes = _hashes_by_size(texts.view(np.uint64), size)[-1][size - 1 :]
        heads, links = np.frombuffer(level.heads, dtype=np.int32), np.frombuffer(level.links, dtype=np.int32)
        known[size - 1 :] = True
        known[np.unique(hashes, return_index=True)[1] + size - 1] = False  # the first place of each hash
        places = heads[(hashes >> np.uint64(self._shift)).astype(np.intp)]
        sought = np.flatnonzero(places)
        for _ in range(self._max_candidates):
            if not len(sought):
                break
            at = places[sought]
            is_there = (stored[at - size] == first[sought]) & (stored[at - 1] == last[sought])
            known[sought[is_there] + size - 1] = True
            sought = sought[~is_there]
            places[sought] = links[places[sought]]
            sought = sought[places[sought] > 0]
        return known

    def _longest(self, tail: array[int], places: list[int], limit: int, longer_than: int) -> Match:
        best = Match(0, longer_than)
        limit = min(limit, len(tail))
        for level, latest in zip(reversed(self._levels), reversed(places), strict=True):
            size, place = level.size, latest
            if size > limit or not place:
                continue
            best = self._longest_in_chain(tail, level, place, limit, best)
            if best.length >= size:
                break
        return best if best.end else NO_MATCH

    def _longest_in_chain(self, tail: array[int], level: _Level, place: int, limit: int, best: Match) -> Match:
        values, links, size = self.values, level.links, level.size
        wanted = tail[-size:]
        for _ in range(self._max_candidates):
            if not place or best.length >= limit:
                break
            if values[place - size : place] == wanted:
                length = self._num_agreeing(tail, place, size, limit)
                if length > best.length:
                    best = Match(place, length)
            place = links[place]
        return best

    def _num_agreeing(self, tail: array[int], place: int, num_known: int, limit: int) -> int:
        values, length = self.values, num_known
        limit = min(limit, place)
        while length < limit and values[place - length - 1] == tail[-length - 1]:
            length += 1
        return length


class _Level:
    """The chains of one size; heads and links are places, 0 = none."""

    __slots__ = ("heads", "links", "size")

    def __init__(self, size: int, num_heads: int) -> None:
        self.size = size
        self.heads = array("i", bytes(4 * num_heads))
        self.links = array("i", (0,))

    def take_in(self, hashes: npt.NDArray[np.uint64], shift: int, begin: int, end: int) -> None:
        """Link the places begin + 1 to end, which have these hashes [end - begin]."""
        num_short = min(max(self.size - 1 - begin, 0), end - begin)  # places with fewer than `size` values before them
        links = np.zeros(end - begin, dtype=np.int32)
        buckets = hashes[num_short:] >> np.uint64(shift)
        if len(buckets):
            links[num_short:] = self._linked(buckets, begin + num_short + 1)
        self.links.frombytes(links.tobytes())

    def _linked(self, buckets: npt.NDArray[np.uint64], first: int) -> npt.NDArray[np.int32]:
        """The links of the places from `first` on, whose hashes are in `buckets`. Mutates: heads."""
        # bucket and number in one integer: sorting these is several times faster than a stable argsort
        keys = np.sort((buckets << np.uint64(32)) | np.arange(len(buckets), dtype=np.uint64))
        order = (keys & np.uint64(0xFFFFFFFF)).astype(np.int32)
        buckets = (keys >> np.uint64(32)).astype(np.intp)
        is_first = np.ones(len(buckets), dtype=bool)
        np.not_equal(buckets[1:], buckets[:-1], out=is_first[1:])
        heads: npt.NDArray[Any] = np.frombuffer(self.heads, dtype=np.int32)
        before = np.empty(len(buckets), dtype=np.int32)
        before[1:] = order[:-1] + first
        before[is_first] = heads[buckets[is_first]]
        is_last = np.append(is_first[1:], True)
        heads[buckets[is_last]] = order[is_last] + first
        links = np.empty(len(buckets), dtype=np.int32)
        links[order] = before
        return links


def hashes_of(tail: array[int]) -> list[int]:
    """The hashes of the last 0, 1, 2, ... values of a text, up to the largest of SIZES."""
    hashes, total = [0], 0
    for value, power in zip(reversed(tail[-SIZES[-1] :]), _POWERS[1:], strict=False):
        total = (total + value * power) & _MASK
        hashes.append(total)
    return hashes


def _hashes_by_size(values: npt.NDArray[np.uint64], largest: int) -> list[npt.NDArray[np.uint64]]:
    """For the sizes 1, 2, 4 ... `largest`: the hash of the values before each place. Shapes: [len(values)] each.

    Zeros precede the text. A hash is the sum of value x factor^(1 + number of later values), modulo 2^64.
    """
    hashes = [values * np.uint64(_FACTOR)]
    size = 1
    while size < largest:
        doubled = hashes[-1].copy()
        doubled[size:] += hashes[-1][:-size] * np.uint64(_POWERS[size])
        hashes.append(doubled)
        size *= 2
    return hashes
