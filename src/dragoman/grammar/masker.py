"""A position in a compiled grammar, with the tokens that may come next.

Used by the engine: on its thread and, while a forward runs, on the thread that computes masks; never on both at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from time import thread_time
from typing import Any, NamedTuple

import numpy as np

from dragoman.errors import InvalidParameter
from dragoman.grammar.bitmask import MaskWords, holds_only, ids_of
from dragoman.types import NOTHING_FORESEEN, SLOW_MASK_S, Foreseen

_LEAST_AHEAD = 32  # tokens to foresee at once, which is cheaper than again after each one
_FEW_WORDS = 32  # words of a mask that allow anything: with more, text is free
_MAX_REASON = 300  # characters of llguidance's explanation that reach the client
_WORDS = (  # its terms, and plainer ones
    (re.compile(r"NoExtensionBias"), "it never comes to an end: a rule or a reference leads back to itself"),
    (re.compile(r"Schema intersection stack level exceeded"), "a reference leads back to itself"),
    (
        re.compile(r"circular references with sibling keys .*"),
        "a reference that leads back to itself stands beside others",
    ),
    (re.compile(r"Regex is empty: .*"), "no text matches all of pattern, format, lengths, const and enum"),
    (re.compile(r"Unsatisfiable schema: "), "no value can match: "),
    (re.compile(r"\bschema is false"), "nothing is allowed"),
    (re.compile(r"\b(anyOf|oneOf) is empty"), "there is no alternative"),
)
_EXCERPT = re.compile(r"\s*(\d+ \||\^)")  # a quoted line of the grammar, and the caret below it

_CONTROL = re.compile(rb"\xff\[(\d+)\]")  # the matcher's form of a control token among bytes
_MAX_TOKEN_BYTES = 16  # of most tokens; texts are cut to this length per wanted token
_MAX_CACHED = 2_048  # forced texts, which repeat with each answer to a schema

Encode = Callable[[str], Sequence[int]]


def explained(reason: str) -> str:
    """llguidance's message in one line for the client, without its quotes and its dump of the parser."""
    lines = reason.partition("<state>")[0].splitlines()
    text = " ".join(" ".join(line for line in lines if not _EXCERPT.match(line)).split())
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return text if len(text) <= _MAX_REASON else text[: _MAX_REASON - 3] + "..."


@dataclass(slots=True)
class MaskBudget:
    """The processor time of a request's grammar over all its sequences, and its bound. `param`: the grammar's."""

    most_s: float = float("inf")
    spent_s: float = 0.0
    param: str = "response_format"

    def check(self) -> None:
        if self.spent_s > self.most_s:
            raise InvalidParameter(
                f"{self.param}: following the grammar took more than {self.most_s:g} s of a processor "
                "(option.max_grammar_s); write a less ambiguous one",
                param=self.param,
            )


@dataclass(frozen=True)
class Vocabulary:
    """The facts about a tokenizer for grammars.

    `token_bytes[i]`: the bytes of token i (special tokens: their name). `special_ids` never match text; the eos ids end
    the output. `encode` gives the tokens of a text after other text; None = the longest tokens that fit.
    """

    token_bytes: Sequence[bytes]
    special_ids: frozenset[int]
    eos_id: int
    extra_eos_ids: frozenset[int] = frozenset()
    encode: Encode | None = None

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        return self.extra_eos_ids | {self.eos_id}

    @cached_property
    def single_bytes(self) -> frozenset[bytes]:
        return frozenset(token for token in self.token_bytes if len(token) == 1)


class Spelling:
    """Spells a text that a grammar forces in the tokenizer's usual tokens. `encode`: see `Vocabulary`."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._tokens_of = lru_cache(_MAX_CACHED)(self._spell)

    def tokens(self, forced: bytes, limit: int) -> tuple[tuple[int, ...], bool]:
        """The first `limit` tokens, and True if there are no more."""
        most = limit * _MAX_TOKEN_BYTES
        token_ids = self._tokens_of(forced[:most])
        if len(forced) > most:  # the last ones may have been cut in two
            token_ids = token_ids[:-2]
        return token_ids[:limit], len(forced) <= most and len(token_ids) <= limit

    def _spell(self, forced: bytes) -> tuple[int, ...]:
        token_ids: list[int] = []
        parts = _CONTROL.split(forced)
        for text, control in zip(parts[::2], [*parts[1::2], None], strict=True):
            known = _valid_front(text)
            token_ids += self._encode(known.decode()) if known else ()
            if len(known) < len(text):
                break
            if control is not None:
                token_ids.append(int(control))
        return tuple(token_ids)


def _valid_front(text: bytes) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return text[: error.start]
    return text


class _Known(NamedTuple):
    """Foreseen tokens. `is_all`: nothing more is forced after them, or it cannot be known."""

    foreseen: Foreseen
    is_all: bool

    def reaches(self, limit: int) -> bool:
        """True if another look would not find more of `limit` tokens."""
        return self.is_all or len(self.foreseen.token_ids) >= limit

    def cut(self, limit: int) -> Foreseen:
        token_ids, num_forced, _ = self.foreseen
        if len(token_ids) <= limit:
            return self.foreseen
        return Foreseen(token_ids[:limit], min(num_forced, limit), is_open=False)

    def behind(self, token_id: int) -> _Known | None:
        token_ids, num_forced, is_open = self.foreseen
        if len(token_ids) < 2 or token_ids[0] != token_id:
            return None
        return _Known(Foreseen(token_ids[1:], max(num_forced - 1, 0), is_open), self.is_all)


_NOTHING_KNOWN = _Known(NOTHING_FORESEEN, is_all=True)


class _Scout:
    """A copy of `leader`, made at its first use, which runs ahead and comes back.

    Rolling back the matcher itself would be faster. But it keeps effects of the way that its sequence does not go: an
    error of a too complex grammar, or forced bytes, which hide control tokens from the next mask. A new copy each time
    is slow, as it copies everything parsed so far: 20 µs at 1,000 tokens.
    """

    def __init__(self, leader: Any) -> None:
        self._leader = leader
        self._matcher: Any = None
        self._behind: list[int] = []  # tokens consumed by the leader, but not by the copy

    def follow(self, token_id: int) -> None:
        """Note a token that the leader has consumed."""
        if self._matcher is not None:
            self._behind.append(token_id)

    def ahead(self) -> Any:
        """The copy at the leader's position; `back` must follow."""
        behind = self._behind
        if behind and self._matcher is not None and self._matcher.try_consume_tokens(behind) != len(behind):
            self._matcher = None
        if self._matcher is None:
            self._matcher = self._leader.deep_copy()
        behind.clear()
        return self._matcher

    def back(self, num_tokens: int) -> None:
        """Roll the copy back to the position of `ahead`; drop it if that fails."""
        matcher = self._matcher
        if matcher.is_error() or (num_tokens and not matcher.rollback(num_tokens)):
            self._matcher = None

    def drop(self) -> None:
        self._matcher = None
        self._behind.clear()


class GrammarMasker:
    """A position in a compiled grammar: the sampler's TokenMasker.

    Once the text is complete only end-of-sequence is allowed, any number of times. The same holds if the grammar becomes too
    complex to follow; advancing then fails.
    """

    def __init__(
        self, matcher: Any, vocabulary: Vocabulary, spelling: Spelling, budget: MaskBudget | None = None
    ) -> None:
        self.last_s = 0.0
        self._now_s = 0.0  # since the last token
        self._budget = budget or MaskBudget()
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._spelling = spelling
        self._scout = _Scout(matcher)
        self._known: _Known | None = None  # foreseen from here, or earlier and confirmed

    def fork(self) -> GrammarMasker:
        twin = GrammarMasker(self._matcher.deep_copy(), self._vocabulary, self._spelling, self._budget)
        twin.last_s = self.last_s
        return twin

    @property
    def total_s(self) -> float:
        return self._budget.spent_s

    def fill_mask(self, bitmask_row: MaskWords) -> None:
        """Write the allowed tokens into a row of 32-bit words. Shapes: [ceil(V / 32)], C-contiguous, for V logits."""
        self._fill(self._matcher, bitmask_row)

    def fill_masks(self, bitmask_rows: MaskWords, token_ids: Sequence[int]) -> None:
        """Write masks like `fill_mask`, for here and after each of these tokens. Shapes: [1 + tokens, ceil(V / 32)]."""
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
        """At most `limit` tokens of the text forced from here, none while masks are slow; see `Foreseen`."""
        if limit < 1 or self.last_s >= SLOW_MASK_S:
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
        token_ids, is_all = self._spelling.tokens(forced, limit)
        if not ahead.try_consume_tokens(token_ids[:1]):
            self._scout.drop()  # going back removes the forced bytes
            return _NOTHING_KNOWN
        self._scout.back(1)
        return self._checked(list(token_ids), is_all=is_all)

    def _checked(self, token_ids: list[int], *, is_all: bool) -> _Known:
        """The allowed beginning of these tokens, of which the first is known to be allowed."""
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
        """False if another token is certainly allowed too: the one of only its first byte."""
        vocabulary = self._vocabulary
        token_bytes = vocabulary.token_bytes[token_id]
        is_apart = token_id in vocabulary.special_ids or len(token_bytes) == 1
        return is_apart or token_bytes[:1] not in vocabulary.single_bytes

    def _mask_of(self, matcher: Any) -> MaskWords:
        words = self._words()
        self._compute(matcher, words)
        return words

    def _compute(self, matcher: Any, words: MaskWords) -> None:
        begin_s = thread_time()  # this thread's time; other programs do not count
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._count(begin_s)

    def _count(self, begin_s: float) -> None:
        took_s = thread_time() - begin_s
        self._now_s += took_s
        self._budget.spent_s += took_s

    def _is_front(self, token_id: int, words: MaskWords) -> bool:
        """True if another allowed token begins with this one. Shapes: words as in `fill_mask`."""
        token_bytes = self._vocabulary.token_bytes
        front = token_bytes[token_id]
        others = ids_of(words, _FEW_WORDS)
        return others is None or any(token_bytes[i].startswith(front) for i in others.tolist() if i != token_id)

    def _words(self) -> MaskWords:
        return np.zeros(-(-len(self._vocabulary.token_bytes) // 32), dtype=np.uint32)

    def _fill(self, matcher: Any, bitmask_row: MaskWords) -> None:
        num_words = -(-len(self._vocabulary.token_bytes) // 32)
        bitmask_row[num_words:] = 0
        if bitmask_row.size >= num_words:
            self._compute(matcher, bitmask_row[:num_words])
        else:  # fewer logits than tokens: llguidance wants room for all of them
            bitmask_row[:] = self._mask_of(matcher)[: bitmask_row.size]

    def advance(self, token_id: int) -> bool:
        """Consume a token; False if the grammar forbids it. Raises: InvalidParameter if it is too complex or slow to
        follow.
        """
        if token_id in self._vocabulary.eos_ids and self._matcher.is_stopped():
            self._check_followed()
            return True  # the matcher accepts only one end
        begin_s = thread_time()
        is_taken = self._matcher.try_consume_tokens([token_id]) == 1
        self._count(begin_s)
        self.last_s, self._now_s = self._now_s, 0.0
        self._budget.check()
        if not is_taken:
            self._check_followed()
            return False
        self._scout.follow(token_id)
        if self._known is not None:
            self._known = self._known.behind(token_id)
        return True

    def _check_followed(self) -> None:
        if self._matcher.is_error():
            param, reason = self._budget.param, explained(self._matcher.get_error())
            raise InvalidParameter(f"{param}: the grammar became too complex to follow: {reason}", param=param)

    def validate(self, token_ids: Sequence[int]) -> int:
        """The number of leading tokens that the grammar allows; 0 while masks are slow."""
        if self.last_s >= SLOW_MASK_S:
            return 0
        ended = self._matcher.is_stopped()
        num_allowed = 0 if ended else int(self._matcher.validate_tokens(list(token_ids)))
        if num_allowed:
            ended = token_ids[num_allowed - 1] in self._vocabulary.eos_ids
        while ended and num_allowed < len(token_ids) and token_ids[num_allowed] in self._vocabulary.eos_ids:
            num_allowed += 1
        return num_allowed

    @property
    def is_finished(self) -> bool:
        return bool(self._matcher.is_stopped())
