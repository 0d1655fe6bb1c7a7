"""A sequence's own text as the guess: what followed the longest earlier match of its end will follow again.

Does: keep a `MatchFinder` per sequence and copy. Does not: run a model, or look at other sequences (`recent_texts`). A
`Proposer`, called by `speculation`, on the engine thread only. Pays off where answers repeat their prompt or themselves:
summaries, edits, quotes, code, JSON, tool calls.

Memory: about 45 bytes per token of each decoding sequence, far less than its cache blocks.
Source: prompt lookup (Saxena 2023), with the longest match instead of a fixed n.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from collections.abc import Sequence as Rows

from dragoman.engine.rolling.sequence import Sequence
from dragoman.engine.rolling.speculate.copy_cursor import CopyCursor, copied_evidence
from dragoman.engine.rolling.speculate.match_finder import MAX_LENGTH, MatchFinder
from dragoman.engine.rolling.speculate.proposer import NOTHING, Basis, Proposal, Wish

# A single token repeats everywhere without its continuation repeating, so it is a match only for who asks for 1-grams.
_MIN_LENGTH = 2


class OwnTextProposer:
    """Proposes what followed the longest earlier occurrence of a sequence's last tokens, of equals the latest.

    The passage that the previous proposal copied from goes first, unless another one agrees for longer; see `CopyCursor`
    for one that was left. A copy that reaches the sequence's end repeats itself. A guess's strength is the number of
    tokens that agree before it, 1 where a copy was found back by a single one.
    """

    needs_slots = False

    def __init__(self, max_ngram_size: int | None = None) -> None:
        """`max_ngram_size`: for wishes that do not say it; None = however long."""
        self._max_ngram_size = max_ngram_size
        self._texts: dict[int, _OwnText] = {}

    def propose(self, wishes: Rows[Wish]) -> list[Proposal]:
        """See `Proposer`. A sequence's first call takes in its prompt; later ones only look at new tokens."""
        return [self._proposal(wish) for wish in wishes]

    def retain(self, sequence_ids: Collection[int]) -> None:
        """Forget every sequence but these."""
        for sequence_id in [key for key in self._texts if key not in sequence_ids]:
            del self._texts[sequence_id]

    def note_finished(self, sequence: Sequence) -> None:
        """Forget it."""
        self._texts.pop(sequence.sequence_id, None)

    def close(self) -> None:
        """Forget every sequence."""
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
    """The text of one sequence. `cursor`: where it copies from."""

    def __init__(self, max_ngram_size: int | None) -> None:
        self._longest = min(max_ngram_size or MAX_LENGTH, MAX_LENGTH)
        self._finder = MatchFinder(min(_MIN_LENGTH, self._longest), self._longest)
        self.cursor = CopyCursor()

    def guesses(self, token_ids: array[int], num_tokens: int) -> array[int]:
        """Up to `num_tokens` tokens that may follow `token_ids`, which goes on what it was at the last call."""
        finder, cursor = self._finder, self.cursor
        new = token_ids[len(finder) :]
        finder.extend(new)
        cursor.follow(new)
        if cursor.length < self._longest:
            match = finder.longest_at_end(self._longest, longer_than=cursor.length)
            if match.length:
                cursor.move_to(finder, match)
            elif not cursor.length:
                cursor.find_back(token_ids[-1], end=len(finder) - 1)
        found = cursor.guesses(num_tokens)
        while found and len(found) < num_tokens:  # what stands at the end are the guesses themselves
            found.extend(found[: num_tokens - len(found)])
        return found
