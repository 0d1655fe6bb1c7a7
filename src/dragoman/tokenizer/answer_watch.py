"""Watches an answer as its tokens come: ends reasoning that is too long or repeats itself, finds content that does.

One watch per sequence, on the engine thread. It searches marks in the text, since any tokens may spell them.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
import numpy.typing as npt

from dragoman.tokenizer.base import TokenPieces
from dragoman.types import EngineRequest, RepetitionDetection, Thinking

_BEFORE, _THINKING, _CLOSING, _ANSWERING = range(4)
_MOST_OF_CHARACTER = 4  # bytes


def watch_answer(pieces: TokenPieces, request: EngineRequest) -> AnswerWatch | None:
    found = AnswerWatch(pieces, request.thinking, request.sampling.repetition_detection)
    return None if found.is_over else found


class LoopDetector:
    """Detects repetition in the last tokens: counts, for every size of a pattern, the tokens equal to those before.

    The newest tokens stand in `_tokens` from `_place` on, the newest first. No count is above `_most`.
    """

    __slots__ = ("_first", "_last", "_least", "_most", "_needed", "_place", "_runs", "_tokens")

    def __init__(self, rule: RepetitionDetection) -> None:
        sizes = np.arange(rule.min_pattern_size, rule.max_pattern_size + 1)
        self._first, self._last = rule.min_pattern_size - 1, rule.max_pattern_size
        self._needed = sizes * (rule.min_count - 1)
        self._least = int(self._needed[0])
        self._most = 0
        self._runs: npt.NDArray[np.int64] = np.zeros(sizes.size, dtype=np.int64)
        self._tokens: npt.NDArray[np.int64] = np.full(2 * self._last, -1, dtype=np.int64)
        self._place = self._last

    def fork(self) -> LoopDetector:
        other = copy(self)
        other._runs, other._tokens = self._runs.copy(), self._tokens.copy()
        return other

    def ends_with(self, token_id: int) -> bool:
        """True if this as the next token makes a loop."""
        if self._most + 1 < self._least:
            return False
        return bool(((self._runs + 1) * self._equal_to(token_id) >= self._needed).any())

    def push(self, token_id: int) -> bool:
        self._runs += 1
        self._runs *= self._equal_to(token_id)
        if self._place == 0:
            self._tokens[self._last :] = self._tokens[: self._last]
            self._place = self._last
        self._place -= 1
        self._tokens[self._place] = token_id
        self._most += 1
        if self._most < self._least:
            return False
        self._most = int(self._runs.max())
        return bool((self._runs >= self._needed).any())

    def _equal_to(self, token_id: int) -> npt.NDArray[np.bool_]:
        equal: npt.NDArray[np.bool_] = self._tokens[self._place + self._first : self._place + self._last] == token_id
        return equal


class AnswerWatch:
    """Implements `types.AnswerWatch`. `repetition`: of the content; None = it may repeat itself."""

    __slots__ = (
        "_begin", "_ends", "_is_spent", "_keep", "_loop", "_num_thought", "_phase", "_pieces", "_repetition", "_text",
        "_thinking", "forced_ids", "is_over",
    )  # fmt: skip

    def __init__(
        self, pieces: TokenPieces, thinking: Thinking | None, repetition: RepetitionDetection | None = None
    ) -> None:
        self._pieces = pieces
        self._thinking = thinking
        self._repetition = repetition if repetition is not None and repetition.max_pattern_size else None
        self._begin = b"" if thinking is None else thinking.begin.encode()
        self._ends = () if thinking is None else tuple(end.encode() for end in thinking.ends)
        self._keep = max(map(len, (self._begin, *self._ends))) - 1  # bytes at the end that may be part of a mark
        self._text = b""  # may still become a mark
        self._num_thought = 0
        self._is_spent = False  # the reasoning was ended
        self._loop: LoopDetector | None = None
        self.forced_ids: Sequence[int] = ()
        self.is_over = False
        self._phase = _ANSWERING
        if thinking is None:
            self._answer()
        elif thinking.is_open:
            self._think()
        else:
            self._wait()

    def fork(self) -> AnswerWatch:
        other = copy(self)
        other._loop = None if self._loop is None else self._loop.fork()
        return other

    def advance(self, token_id: int) -> None:
        if self._phase == _THINKING:
            self._take_thought(token_id)
        elif self._phase == _CLOSING:
            self.forced_ids = self.forced_ids[1:]
            if not self.forced_ids:
                self._end_thought()
        else:
            if self._loop is not None:
                self._loop.push(token_id)
            if self._phase == _BEFORE:
                self._look_for_begin(token_id)

    def ends_with(self, token_id: int) -> bool:
        is_content = self._phase in (_BEFORE, _ANSWERING)
        return is_content and self._loop is not None and self._loop.ends_with(token_id)

    def num_possible(self, token_ids: Sequence[int]) -> int:
        """Does not count tokens after the budget is used up."""
        if self._phase == _CLOSING:
            pairs = zip(token_ids, self.forced_ids, strict=False)
            return next((place for place, (token_id, forced) in enumerate(pairs) if token_id != forced), len(token_ids))
        if self._phase == _THINKING and self._thinking is not None and self._thinking.budget is not None:
            return min(len(token_ids), max(0, self._thinking.budget - self._num_thought))
        return len(token_ids)

    # --- phases -------------------------------------------------------------------------------------------------------

    def _look_for_begin(self, token_id: int) -> None:
        assert self._thinking is not None
        self._text += self._pieces[token_id].bytes
        if self._thinking.recurs:
            if self._begin in self._text:
                self._think()
            else:
                self._text = self._text[-self._keep :]
            return
        start = self._text.lstrip()
        if start.startswith(self._begin):
            self._think()
        elif not any(mark.startswith(start) for mark in (self._begin, *self._ends)):
            self._phase, self._text, self.is_over = _ANSWERING, b"", self._loop is None

    def _think(self) -> None:
        thinking = self._thinking
        assert thinking is not None
        self._phase, self._text = _THINKING, b""
        rule = thinking.repetition
        self._loop = LoopDetector(rule) if rule is not None and rule.max_pattern_size else None
        if self._is_spent:
            self._close(thinking.reclosing_ids or thinking.closing_ids)
        elif thinking.budget is not None and self._num_thought >= thinking.budget:
            self._close(thinking.closing_ids)

    def _take_thought(self, token_id: int) -> None:
        thinking = self._thinking
        assert thinking is not None
        text = self._text + self._pieces[token_id].bytes
        self._text = text[-max(self._keep, _MOST_OF_CHARACTER) :]
        if any(end in text for end in self._ends):
            self._end_thought()
            return
        self._num_thought += 1
        is_loop = self._loop is not None and self._loop.push(token_id)
        num_over = -1 if thinking.budget is None else self._num_thought - thinking.budget
        if (is_loop or num_over >= 0) and (not _is_cut(text) or num_over >= _MOST_OF_CHARACTER):
            self._close(thinking.closing_ids)

    def _close(self, token_ids: Sequence[int]) -> None:
        self._phase, self._is_spent, self._loop = _CLOSING, True, None
        self.forced_ids = token_ids

    def _end_thought(self) -> None:
        assert self._thinking is not None
        if self._thinking.recurs:
            self._wait()
        else:
            self._answer()

    def _wait(self) -> None:
        self._phase, self._text = _BEFORE, b""
        self._loop = None if self._repetition is None else LoopDetector(self._repetition)

    def _answer(self) -> None:
        self._wait()
        self._phase, self.is_over = _ANSWERING, self._loop is None


def _is_cut(text: bytes) -> bool:
    for count, byte in enumerate(reversed(text[-_MOST_OF_CHARACTER:]), 1):
        if byte & 0xC0 != 0x80:  # not a continuation byte
            return count < (4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1)
    return False
