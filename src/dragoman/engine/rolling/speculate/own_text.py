"""Guesses from a sequence's own text: repeats what followed the longest earlier match of its end. On the engine thread.

The text is a string of one character per token, as strings are searched fastest: half a nanosecond per token. Source:
prompt lookup (Saxena 2023), with the longest match instead of a fixed n.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from collections.abc import Sequence as Rows

import numpy as np

from dragoman.engine.rolling.sequence import Sequence
from dragoman.engine.rolling.speculate.copy_cursor import CopyCursor, copied_evidence
from dragoman.engine.rolling.speculate.match_finder import MAX_LENGTH, NO_MATCH, Match
from dragoman.engine.rolling.speculate.proposer import NOTHING, Basis, Proposal, Proposer, Wish

# Single tokens recur everywhere without their continuation, so they match only for wishes of 1-grams.
_MIN_LENGTH = 2
_BULK = 48  # from this many tokens on, numpy is faster
_CHARACTERS = (1 << 20) - 1  # all smaller numbers are characters; of larger token ids the lower bits suffice


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
