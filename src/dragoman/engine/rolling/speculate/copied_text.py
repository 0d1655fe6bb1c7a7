"""Guesses copied from earlier text: the sequence's own, or that of ended requests. On the engine thread only.

A proposer repeats what followed the longest match of the sequence's end, and a cursor follows the copied passage.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dragoman.engine.rolling.sequence import Sequence
from dragoman.engine.rolling.speculate.match_finder import MAX_LENGTH, NO_MATCH, Match, MatchFinder, hashes_of
from dragoman.engine.rolling.speculate.proposer import NOTHING, NUM_STRENGTHS, Basis, Proposal, Proposer, Wish, evidence

# Single tokens recur everywhere without their continuation, so they match only for wishes of 1-grams.
_MIN_LENGTH = 2
_BULK = 48  # from this many tokens on, numpy is faster
_CHARACTERS = (1 << 20) - 1  # all smaller numbers are characters; of larger token ids the lower bits suffice

DEFAULT_MAX_TOKENS = 262_144

_MIN_TEXT = 16  # tokens; shorter texts are useless, and cannot be recognised as known
_MIN_MAX_TOKENS = 256
_MAX_WAITING = 4_096  # tokens of ended texts that are stored together: alone each takes several times as long
_NUM_JOINED = 64  # known tokens between two new parts that are stored again, or copies would end there
_TAG_BITS = 32
_TOKEN_MASK = (1 << _TAG_BITS) - 1
_SEPARATOR = -1  # separates two texts; tagged tokens are never negative

Owner = tuple[str, str, str]
"""Caller, key of the adapter, cache salt."""

# The best of the tried values, by tokens per step on edits, JSON and agent loops, where resuming gains 2, 22 and 7 %.
_WORTH_FINDING_BACK = 4  # tokens that agreed before the deviation; fewer often agree by chance
_NUM_ASIDE = 8  # tokens after which an interrupted copy is given up
_NUM_SKIPPED = 16  # tokens of the passage where the copy may resume, including the one before


# --- following a copy -------------------------------------------------------------------------------------------------


class Source(Protocol):
    values: array[int]


class CopyCursor:
    """A place in a text: follows the passage that a sequence copies, and returns to it after a deviation.

    A copy often deviates for a few tokens, at a changed name or value. So it resumes where the next token occurs shortly
    after the deviation; elsewhere a single equal token means nothing. `length`: the number of agreeing tokens before the
    place, at most MAX_LENGTH; 0 = no place.
    """

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


# --- the sequence's own text ------------------------------------------------------------------------------------------


class OwnTextProposer(Proposer):
    """Proposes what followed the longest earlier occurrence of a sequence's last tokens, of equals the latest.

    The previously copied passage is preferred, unless another one agrees for longer. A guess's strength is the number
    of agreeing tokens before it, 1 if a single token resumed the copy.
    """

    def __init__(self, max_ngram_size: int | None = None) -> None:
        """`max_ngram_size`: for wishes without one; None = unlimited."""
        self._max_ngram_size = max_ngram_size
        self._texts: dict[int, _OwnText] = {}

    def propose(self, wishes: Rows[Wish]) -> list[Proposal]:
        return [self._proposal(wish) for wish in wishes]

    def retain(self, sequence_ids: Collection[int]) -> None:
        for sequence_id in [key for key in self._texts if key not in sequence_ids]:
            del self._texts[sequence_id]

    def note_finished(self, sequence: Sequence) -> None:
        self._texts.pop(sequence.sequence_id, None)

    def close(self) -> None:
        self._texts.clear()

    def _proposal(self, wish: Wish) -> Proposal:
        text = self._texts.get(wish.sequence.sequence_id)
        if text is None:
            text = self._texts[wish.sequence.sequence_id] = _OwnText(wish.max_ngram_size or self._max_ngram_size)
        guesses = text.guesses(wish.sequence.token_ids, wish.max_tokens)
        if not guesses:
            return NOTHING
        return Proposal(guesses, copied_evidence(Basis.OWN_TEXT, text.cursor.length, len(guesses)))


class _OwnText:
    """A sequence's text as a string of one character per token, as strings are searched fastest: half a ns per token.

    Source: prompt lookup (Saxena 2023), with the longest match instead of a fixed n.
    """

    def __init__(self, max_ngram_size: int | None) -> None:
        self._longest = min(max_ngram_size or MAX_LENGTH, MAX_LENGTH)
        self._shortest = min(_MIN_LENGTH, self._longest)
        self._text = ""
        self.values = array("q")
        self.cursor = CopyCursor()

    def guesses(self, token_ids: array[int], num_tokens: int) -> array[int]:
        """Up to `num_tokens` tokens that may follow `token_ids`, which extends those of the last call."""
        cursor, self.values = self.cursor, token_ids
        new = token_ids[len(self._text) :]
        self._text += _characters(new)
        cursor.follow(new)
        if cursor.length < self._longest:
            match = self._longest_match(longer_than=cursor.length)
            if match.length:
                cursor.move_to(self, match)
            elif not cursor.length:
                cursor.find_back(token_ids[-1], end=len(token_ids) - 1)
        found = cursor.guesses(num_tokens)
        while found and len(found) < num_tokens:  # a copy that reaches the end continues with its own guesses
            found.extend(found[: num_tokens - len(found)])
        return found

    def _longest_match(self, longer_than: int) -> Match:
        """The longest earlier occurrence of the text's end, of equals the latest; NO_MATCH if none is `longer_than`."""
        text, best = self._text, NO_MATCH
        size, end = max(self._shortest, longer_than + 1), len(text) - 1
        while size <= self._longest and (place := text.rfind(text[-size:], 0, end)) >= 0:
            end = place + size
            while size < self._longest and end > size and text[end - size - 1] == text[-size - 1]:
                size += 1
            best = Match(end, size)
            size += 1
        return best


def _characters(token_ids: array[int]) -> str:
    if len(token_ids) < _BULK:
        return "".join([chr(token_id & _CHARACTERS) for token_id in token_ids])
    numbers = np.frombuffer(token_ids, dtype=np.int64) & _CHARACTERS
    return numbers.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


# --- texts of ended requests ------------------------------------------------------------------------------------------


class RecentTextsProposer(Proposer):
    """Proposes what followed the longest match of a sequence's last tokens in recent texts of the same owner.

    Of equally long matches the latest; the previously copied passage is preferred.

    Isolation of callers: a text belongs to the caller, the adapter and the cache salt of its request. Only requests with
    the same three get guesses from it. Every stored token has their number in its upper half, so tokens of different
    owners are never equal.

    New texts go into the young generation; when it is full, it becomes the old one, and the previous old one is dropped.
    A text is stored again unless the young one has it, so recurring texts stay. Source: SuffixDecoding, Oliaro et al.
    2024, arXiv:2411.04975; its suffix tree made no better guesses on five kinds of text than the latest of the longest
    matches.
    """

    def __init__(self, max_tokens: int = DEFAULT_MAX_TOKENS, *, shares_callers: bool = False) -> None:
        """`shares_callers`: all callers count as one. Raises: ValueError if `max_tokens` is too small."""
        if max_tokens < _MIN_MAX_TOKENS:
            raise ValueError(f"max_tokens is {max_tokens}, at least {_MIN_MAX_TOKENS} are needed")
        self._shares_callers = shares_callers
        self._capacity = max_tokens // 2
        self._copies: dict[int, _Copy] = {}
        self._owners: dict[Owner, _Tag] = {}
        self._num_owners = 0  # tags ever made; numbers are never reused
        self._generation = 0
        self._waiting: list[tuple[Owner, array[int]]] = []
        self._num_waiting = 0  # tokens
        self._young, self._old = self._new_generation(), self._new_generation()

    def count_tokens(self) -> int:
        self._take_in()
        return len(self._young) + len(self._old)

    def propose(self, wishes: Rows[Wish]) -> list[Proposal]:
        self._take_in()
        return [self._proposal(wish) for wish in wishes]

    def retain(self, sequence_ids: Collection[int]) -> None:
        """Forget the cursors of all other sequences, but no texts."""
        for sequence_id in [key for key in self._copies if key not in sequence_ids]:
            del self._copies[sequence_id]

    def note_finished(self, sequence: Sequence) -> None:
        """Queue the new part of its text; of a long text only the end, up to an eighth of the capacity."""
        self._copies.pop(sequence.sequence_id, None)
        token_ids = sequence.token_ids[: sequence.num_tokens - sequence.num_draft_tokens]
        if len(token_ids) < _MIN_TEXT:
            return
        token_ids = token_ids[-(self._capacity // 4) :]
        self._waiting.append((self._owner(sequence), token_ids))
        self._num_waiting += len(token_ids)
        if self._num_waiting >= min(_MAX_WAITING, self._capacity // 4):
            self._take_in()

    def close(self) -> None:
        self._copies.clear()
        self._owners.clear()
        self._waiting.clear()
        self._num_waiting = 0
        self._young, self._old = self._new_generation(), self._new_generation()

    def _new_generation(self) -> MatchFinder:
        return MatchFinder(1 << (self._capacity - 1).bit_length())

    def _owner(self, sequence: Sequence) -> Owner:
        group = sequence.group
        adapter = "" if group.adapter is None else group.adapter.key
        return ("" if self._shares_callers else group.request.caller, adapter, group.request.cache_salt)

    def _tag(self, owner: Owner) -> _Tag:
        tag = self._owners.get(owner)
        if tag is None:
            self._num_owners += 1
            tag = self._owners[owner] = _Tag(self._num_owners)
        tag.generation = self._generation
        return tag

    def _take_in(self) -> None:
        if not self._waiting:
            return
        waiting = []
        for owner, token_ids in self._waiting:
            tag = self._tag(owner)
            waiting.append((tag, tag.values(token_ids)))
        self._waiting.clear()
        self._num_waiting = 0
        known = self._young.holds(_joined(values for _, values in waiting))
        parts: list[array[int]] = []
        begin = 0
        for tag, values in waiting:
            begin += 1  # after the separator
            for first, end in _new_parts(known[begin : begin + len(values)]):
                self._make_room(parts, end - first)
                parts.append(values[first:end])
                tag.generation = self._generation
            begin += len(values)
        self._young.extend(_joined(parts))

    def _make_room(self, parts: list[array[int]], num_tokens: int) -> None:
        """Start a generation if the young one cannot hold these parts and `num_tokens` more. Mutates: `parts`."""
        num_parts = sum(map(len, parts)) + len(parts)
        if len(self._young) + num_parts + 1 + num_tokens <= self._capacity:
            return
        self._young.extend(_joined(parts))
        parts.clear()
        self._generation += 1
        self._young, self._old = self._new_generation(), self._young
        oldest = self._generation - 1
        self._owners = {owner: tag for owner, tag in self._owners.items() if tag.generation >= oldest}

    def _proposal(self, wish: Wish) -> Proposal:
        sequence = wish.sequence
        tag = self._owners.get(self._owner(sequence))
        longest = min(wish.max_ngram_size or MAX_LENGTH, MAX_LENGTH)
        if tag is None or longest < _MIN_LENGTH:
            return NOTHING
        copy = self._copies.get(sequence.sequence_id)
        if copy is None or copy.tag is not tag:
            copy = self._copies[sequence.sequence_id] = _Copy(tag, sequence.num_tokens)
        self._move(copy, sequence.token_ids, longest)
        token_ids = array("q")
        for value in copy.cursor.guesses(wish.max_tokens):
            if value == _SEPARATOR:
                break
            token_ids.append(value & _TOKEN_MASK)
        if not token_ids:
            return NOTHING
        return Proposal(token_ids, copied_evidence(Basis.RECENT_TEXT, copy.cursor.length, len(token_ids)))

    def _move(self, copy: _Copy, token_ids: array[int], longest: int) -> None:
        copy.forget_all_but(self._young, self._old)
        cursor = copy.cursor
        cursor.follow(copy.tag.values(token_ids[copy.num_seen :]))
        copy.num_seen = len(token_ids)
        if cursor.length >= longest:
            return
        tail = copy.tag.values(token_ids[-MAX_LENGTH:])
        hashes = hashes_of(tail)
        for finder in (self._young, self._old):
            match = finder.longest(tail, hashes, longest, longer_than=cursor.length)
            if match.length:
                cursor.move_to(finder, match)
        if not cursor.length:
            cursor.find_back(tail[-1])


@dataclass(slots=True)
class _Tag:
    """The number of an owner's texts. `generation`: the last one in which they stored text."""

    number: int
    generation: int = 0

    def values(self, token_ids: array[int]) -> array[int]:
        tag = self.number << _TAG_BITS
        if len(token_ids) <= MAX_LENGTH:
            return array("q", [token_id | tag for token_id in token_ids])
        return array("q", (np.frombuffer(token_ids, dtype=np.int64) | tag).tobytes())


@dataclass(slots=True)
class _Copy:
    """The passage that a running sequence copies. `num_seen`: its tokens at the last proposal."""

    tag: _Tag
    num_seen: int
    cursor: CopyCursor = field(default_factory=CopyCursor)

    def forget_all_but(self, *finders: MatchFinder) -> None:
        if not self.cursor.is_in(finders):
            self.cursor = CopyCursor()


def _joined(texts: Iterable[array[int]]) -> array[int]:
    joined = array("q")
    for text in texts:
        joined.append(_SEPARATOR)
        joined.extend(text)
    return joined


def _new_parts(known: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Iterator[tuple[int, int]]:
    """Begin and end of each unknown part of a text, with the known tokens around it."""
    known[: _MIN_TEXT - 1] = known[_MIN_TEXT - 1]
    new = np.flatnonzero(~known)
    if not len(new):
        return
    breaks = np.flatnonzero(np.diff(new) > _NUM_JOINED)
    begins, ends = new[np.append(0, breaks + 1)], new[np.append(breaks, len(new) - 1)]
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        yield max(begin - MAX_LENGTH, 0), min(end + 1 + MAX_LENGTH, len(known))
