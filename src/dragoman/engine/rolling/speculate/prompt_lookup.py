"""Prompt lookup: guesses that what followed the last few tokens before will follow them again.

Does: keep an index of n-grams per sequence and copy continuations. Does not: run a model. A `Proposer`, called by
`speculation`, on the engine thread only. Pays off where the answer repeats its prompt: summaries, edits, quotes, code.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection
from collections.abc import Sequence as Rows

from dragoman.engine.rolling.sequence import Sequence
from dragoman.engine.rolling.speculate.proposer import SpeculationConfig, Wish

# A single token repeats everywhere without its continuation repeating, so it is a match only for who asks for 1-grams.
_MIN_NGRAM_SIZE = 2
_MAX_NGRAM_SIZE = 16  # longer n-grams find nothing that these do not


class PromptLookupProposer:
    """Proposes the continuation of the latest earlier occurrence of a sequence's last tokens, the longest n-gram first.

    Of several occurrences the one that the previous proposal copied from goes first, if it still fits: it has matched
    for longer than the n-gram can tell. A copy that reaches the sequence's end repeats itself.
    """

    needs_slots = False

    def __init__(self, config: SpeculationConfig | None = None) -> None:
        self.config = config or SpeculationConfig()
        self._indices: dict[int, NgramIndex] = {}

    def propose(self, wishes: Rows[Wish]) -> list[array[int]]:
        """See `Proposer`. A sequence's first call indexes its prompt; later ones only look at new tokens."""
        return [self._continuation(wish) for wish in wishes]

    def retain(self, sequence_ids: Collection[int]) -> None:
        """Forget every sequence but these."""
        for sequence_id in [key for key in self._indices if key not in sequence_ids]:
            del self._indices[sequence_id]

    def close(self) -> None:
        """Forget every sequence."""
        self._indices.clear()

    def _continuation(self, wish: Wish) -> array[int]:
        size = min(wish.max_ngram_size, _MAX_NGRAM_SIZE)
        index = self._indices.get(wish.sequence.sequence_id)
        if index is None:
            index = self._indices[wish.sequence.sequence_id] = NgramIndex(size)
        return index.continuation(wish.sequence.token_ids, _num_trusted(wish))


class NgramIndex:
    """Where in a growing list of tokens its n-grams occurred last, for n up to `max_size`."""

    def __init__(self, max_size: int) -> None:
        self._sizes = range(max_size, min(_MIN_NGRAM_SIZE, max_size) - 1, -1)  # the longest first
        self._next_of: dict[tuple[int, ...], int] = {}  # n-gram -> the position after its latest occurrence
        self._num_indexed = 0  # every n-gram that ends before this position is known
        self._cursor = 0  # where the last proposal copied from; 0 = nowhere
        self._num_seen = 0  # tokens there were at the last proposal

    def continuation(self, token_ids: array[int], num_tokens: int) -> array[int]:
        """Up to `num_tokens` tokens that followed an earlier occurrence of the end of `token_ids`; [] without one."""
        self._take_in(token_ids)
        begin = self._find(token_ids)
        self._cursor, self._num_seen = begin, len(token_ids)
        if not begin:
            return array("q")
        found = token_ids[begin : begin + num_tokens]
        while len(found) < num_tokens:
            found.extend(found[: num_tokens - len(found)])
        return found

    def _take_in(self, token_ids: array[int]) -> None:
        """Index what is new, except the n-grams at the very end, which would only find themselves."""
        end = len(token_ids) - 1
        for size in self._sizes:
            first = max(self._num_indexed - size + 1, 0)
            shifted = [token_ids[first + offset : end] for offset in range(size)]
            ngrams = zip(*shifted, strict=False)
            self._next_of.update(zip(ngrams, range(first + size, end + 1), strict=False))
        self._num_indexed = max(end, 0)

    def _find(self, token_ids: array[int]) -> int:
        """The position to copy from, 0 if nothing matches."""
        longest = self._sizes[0]
        if self._cursor:
            follows = self._cursor + len(token_ids) - self._num_seen
            if token_ids[max(follows - longest, 0) : follows] == token_ids[-longest:]:
                return follows
        for size in self._sizes:
            begin = self._next_of.get(tuple(token_ids[-size:]))
            if begin is not None:
                return begin
        return 0


def _num_trusted(wish: Wish) -> int:
    """How many tokens to copy. A copy has no probability: its confidence is how often the sequence's drafts held so far.

    The i-th token is trusted with that share to the power of i; one token is always tried, or nothing could be learnt.
    """
    if wish.min_confidence is None or wish.min_confidence <= 0.0:
        return wish.max_tokens
    share = _accepted_share(wish.sequence)
    if share >= 1.0:
        return wish.max_tokens
    return max(min(wish.max_tokens, int(math.log(min(wish.min_confidence, 1.0)) / math.log(share))), 1)


def _accepted_share(sequence: Sequence) -> float:
    return (sequence.num_accepted_drafts + 1) / (sequence.num_verified_drafts + 1)
