"""A position in a compiled grammar: which tokens may come next.

Does: masks, advancing, forking, looking ahead. Does not: compile (`compiler` does) or touch logits. Used by the engine as a
`TokenMasker`: on the engine thread and, while a forward runs, on the thread that computes masks; never on both at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dragoman.bitmask import MaskWords, holds_only, ids_of
from dragoman.grammar.scout import Scout
from dragoman.grammar.spelling import Spelling
from dragoman.types import NOTHING_FORESEEN, Foreseen

_LEAST_AHEAD = 32  # tokens: to look once for as many takes less than to look anew behind each of the first
_FEW_WORDS = 32  # of a mask that allow anything: where more do, text is free


@dataclass(frozen=True)
class MaskerVocabulary:
    """What the positions in all grammars of a vocabulary share. `token_bytes`: see `compiler.Vocabulary`."""

    token_bytes: Sequence[bytes]
    eos_ids: frozenset[int]
    spelling: Spelling
    control_ids: frozenset[int] = frozenset()  # those that no text is spelled with

    @cached_property
    def single_bytes(self) -> frozenset[bytes]:
        """The bytes that are tokens by themselves."""
        return frozenset(token for token in self.token_bytes if len(token) == 1)


class _Known(NamedTuple):
    """What was foreseen. `is_all`: nothing is forced behind it, or nothing of that can be told."""

    foreseen: Foreseen
    is_all: bool

    def reaches(self, limit: int) -> bool:
        """True if looking again would not tell more of `limit` tokens."""
        return self.is_all or len(self.foreseen.token_ids) >= limit

    def cut(self, limit: int) -> Foreseen:
        """The first `limit` tokens of it."""
        token_ids, num_forced, _ = self.foreseen
        if len(token_ids) <= limit:
            return self.foreseen
        return Foreseen(token_ids[:limit], min(num_forced, limit), is_open=False)

    def behind(self, token_id: int) -> _Known | None:
        """What is known behind a token that came; None = nothing."""
        token_ids, num_forced, is_open = self.foreseen
        if len(token_ids) < 2 or token_ids[0] != token_id:
            return None
        return _Known(Foreseen(token_ids[1:], max(num_forced - 1, 0), is_open), self.is_all)


_NOTHING_KNOWN = _Known(NOTHING_FORESEEN, is_all=True)


class GrammarMasker:
    """A position in a compiled grammar: the TokenMasker the sampler uses.

    Once the text is complete only end-of-sequence is allowed, any number of times. The same holds when the grammar
    becomes too complex to follow, so that the sequence ends instead of leaving the grammar.
    """

    def __init__(self, matcher: Any, vocabulary: MaskerVocabulary) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._scout = Scout(matcher)
        self._known: _Known | None = None  # what was foreseen from here, or from before and came so

    def fork(self) -> GrammarMasker:
        """An independent copy of the position."""
        return GrammarMasker(self._matcher.deep_copy(), self._vocabulary)

    def fill_mask(self, bitmask_row: MaskWords) -> None:
        """Write the allowed tokens into a row of 32-bit words; tokens beyond the vocabulary are not allowed.

        Shapes: [ceil(V / 32)], C-contiguous, for any number V of logits. Mutates: the row.
        """
        self._fill(self._matcher, bitmask_row)

    def fill_masks(self, bitmask_rows: MaskWords, token_ids: Sequence[int]) -> None:
        """Masks as `fill_mask` writes them, here and after each of these tokens.

        Shapes: [1 + len(token_ids), ceil(V / 32)], C-contiguous. Mutates: the rows.
        """
        self._fill(self._matcher, bitmask_rows[0])
        if not token_ids:
            return
        ahead = self._scout.ahead()
        num_consumed = 0
        for row, token_id in zip(bitmask_rows[1:], token_ids, strict=True):
            num_consumed += ahead.try_consume_tokens([token_id])
            self._fill(ahead, row)
        self._scout.back(num_consumed)

    def foresee(self, limit: int) -> Foreseen:
        """At most `limit` tokens of the text that is forced from here; see `Foreseen`."""
        if limit < 1:
            return NOTHING_FORESEEN
        if self._matcher.is_stopped():
            eos_ids = self._vocabulary.eos_ids
            return Foreseen([*eos_ids] * limit, limit, is_open=False) if len(eos_ids) == 1 else NOTHING_FORESEEN
        known = self._known
        if known is None or not known.reaches(limit):
            known = self._known = self._look_ahead(max(limit, _LEAST_AHEAD))
        return known.cut(limit)

    def _look_ahead(self, limit: int) -> _Known:
        ahead = self._scout.ahead()
        forced = ahead.compute_ff_bytes()
        if not forced:
            self._scout.back(0)
            return _NOTHING_KNOWN
        token_ids, is_all = self._vocabulary.spelling.tokens(forced, limit)
        if not ahead.try_consume_tokens(token_ids[:1]):
            self._scout.drop()  # going back is what rids it of the forced bytes
            return _NOTHING_KNOWN
        self._scout.back(1)
        return self._checked(list(token_ids), is_all=is_all)

    def _checked(self, token_ids: list[int], *, is_all: bool) -> _Known:
        """What is known of these tokens; the first is allowed. Those that are not, and all behind them, are left out."""
        ahead, last = self._scout.ahead(), len(token_ids) - 1
        num_consumed = num_forced = 0
        is_open = False
        while num_consumed == num_forced < last and self._may_be_only(token_ids[num_forced]):
            num_forced += holds_only(self._mask_of(ahead), token_ids[num_forced])
            num_consumed += ahead.try_consume_tokens([token_ids[num_consumed]])
        num_consumed += ahead.try_consume_tokens(token_ids[num_consumed:last])
        if num_consumed == last:
            words, token_id = self._mask_of(ahead), token_ids[last]
            is_only = holds_only(words, token_id)
            num_forced += is_only and num_forced == last
            is_open = is_all and not is_only and self._is_front(token_id, words)
            num_consumed += ahead.try_consume_tokens([token_id])
        self._scout.back(num_consumed)
        is_whole = num_consumed == len(token_ids)
        foreseen = Foreseen(token_ids[:num_consumed], min(num_forced, num_consumed), is_open and is_whole)
        return _Known(foreseen, is_all=is_all or not is_whole)

    def _may_be_only(self, token_id: int) -> bool:
        """False if another token surely is allowed where this one is: the one of its first byte alone."""
        vocabulary = self._vocabulary
        token_bytes = vocabulary.token_bytes[token_id]
        is_apart = token_id in vocabulary.control_ids or len(token_bytes) == 1
        return is_apart or token_bytes[:1] not in vocabulary.single_bytes

    def _mask_of(self, matcher: Any) -> MaskWords:
        words = self._words()
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        return words

    def _is_front(self, token_id: int, words: MaskWords) -> bool:
        """True if another allowed token begins as this one and goes on. Shapes: words as in `fill_mask`."""
        token_bytes = self._vocabulary.token_bytes
        front = token_bytes[token_id]
        others = ids_of(words, _FEW_WORDS)
        return others is None or any(token_bytes[i].startswith(front) for i in others.tolist() if i != token_id)

    def _words(self) -> MaskWords:
        return np.zeros(-(-len(self._vocabulary.token_bytes) // 32), dtype=np.uint32)

    def _fill(self, matcher: Any, bitmask_row: MaskWords) -> None:
        """The mask of a matcher's position, in a row that may be longer or shorter than the vocabulary."""
        num_words = -(-len(self._vocabulary.token_bytes) // 32)
        bitmask_row[num_words:] = 0
        if bitmask_row.size >= num_words:
            own = bitmask_row[:num_words]
            matcher.unsafe_compute_mask_ptr(own.ctypes.data, own.nbytes)
        else:  # fewer logits than tokens: llguidance wants room for all of them
            bitmask_row[:] = self._mask_of(matcher)[: bitmask_row.size]

    def advance(self, token_id: int) -> bool:
        """Consume a token; False, and no change, if the grammar does not allow it."""
        if token_id in self._vocabulary.eos_ids and self._matcher.is_stopped():
            return True  # the matcher itself takes one end only
        if self._matcher.try_consume_tokens([token_id]) != 1:
            return False
        self._scout.follow(token_id)
        if self._known is not None:
            self._known = self._known.behind(token_id)
        return True

    def validate(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens, from the front, the grammar allows; the position does not change."""
        ended = self._matcher.is_stopped()
        num_allowed = 0 if ended else int(self._matcher.validate_tokens(list(token_ids)))
        if num_allowed:
            ended = token_ids[num_allowed - 1] in self._vocabulary.eos_ids
        while ended and num_allowed < len(token_ids) and token_ids[num_allowed] in self._vocabulary.eos_ids:
            num_allowed += 1
        return num_allowed

    @property
    def is_finished(self) -> bool:
        """True if nothing but end-of-sequence may follow."""
        return bool(self._matcher.is_stopped())
