"""The progress of waiting requests, recorded on the engine thread; `ask` and `rows` are for any thread.

The time until the first token is a forecast: prompts in the queue's order, at the pace of the last steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Rows

from dragoman.engine.base import PromptProgress
from dragoman.engine.rolling.pacing import Pacer
from dragoman.engine.rolling.schedule.capacity import Admission
from dragoman.engine.rolling.schedule.fair_queue import FairQueue
from dragoman.engine.rolling.sequence import Sequence

_LEAST_S = 0.25  # between two updates
_SHARE = 50  # an update takes a fiftieth of the time at most, however long the queue is


class ProgressBoard:
    """`rows`: progress by a group's key, at the last update. `is_asked`: the next step updates them."""

    def __init__(
        self, max_num_seqs: int, running: list[Sequence], queue: FairQueue, admission: Admission, pacer: Pacer,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._max_num_seqs = max_num_seqs
        self._running = running
        self._queue = queue
        self._admission = admission
        self._pacer = pacer
        self._clock = clock
        self.is_asked = False
        self._next_s = 0.0
        self.rows: Mapping[int, PromptProgress] = {}

    def ask(self) -> None:
        self.is_asked = True

    def look(self, returning: Rows[Sequence]) -> None:
        """Update the requested rows. `returning`: requests that have begun but do not run."""
        now_s = self._clock()
        if now_s < self._next_s:
            return
        self.is_asked = False
        self.rows = dict(self._rows(now_s, returning))
        self._next_s = now_s + max(_LEAST_S, _SHARE * (self._clock() - now_s))

    def _rows(self, now_s: float, returning: Rows[Sequence]) -> Iterator[tuple[int, PromptProgress]]:
        num_tokens = 0  # of prompts that are computed before the request's first token
        for sequence in self._running:
            if sequence.is_decoding or sequence.num_generated_tokens:
                continue
            num_tokens += sequence.num_tokens - sequence.num_computed_tokens
            group = sequence.group
            if sequence is group.sequences[0]:
                begin_s = group.arrival_s + (group.queue_s or 0.0)
                yield group.key, self._row(sequence, 0, self._prompt_s(num_tokens), now_s - begin_s)
        for sequence in returning:
            num_tokens += sequence.num_tokens
            if sequence is sequence.group.sequences[0] and not sequence.num_generated_tokens:
                yield sequence.group.key, self._row(sequence, 0, self._prompt_s(num_tokens), 0.0)
        ends_s = self._ends_s(is_stuck=not num_tokens)
        num_before = len(returning)
        for num_ahead, group in enumerate(self._queue.in_order()):
            first = group.sequences[0]
            num_tokens += first.num_tokens
            num_before += len(group.sequences)
            read_s, free_s = self._prompt_s(num_tokens), ends_s(num_before)
            expected_s = None
            if read_s is not None and free_s is not None:
                expected_s = max(read_s, free_s + (self._prompt_s(first.num_tokens) or 0.0))
            yield group.key, self._row(first, num_ahead + len(returning), expected_s, 0.0, has_begun=False)

    def _row(
        self, sequence: Sequence, num_ahead: int, expected_s: float | None, since_s: float, *, has_begun: bool = True
    ) -> PromptProgress:
        num_prompt = sequence.num_prompt_tokens
        num_cached = sequence.group.num_cached_tokens if has_begun else 0
        num_read = min(sequence.num_computed_tokens, num_prompt)
        return PromptProgress(num_prompt, num_cached, num_read, since_s, has_begun, num_ahead, expected_s)

    def _prompt_s(self, num_tokens: int) -> float | None:
        token_s = self._pacer.whole_prompt_token_s
        return None if token_s is None else num_tokens * token_s

    def _ends_s(self, *, is_stuck: bool) -> Callable[[int], float | None]:
        """A function from a number of further sequences to the seconds until they have places."""
        num_free = 0 if is_stuck and self._running else self._max_num_seqs - len(self._running)
        left = sorted(self._admission.remaining(self._running)) if self._running else []

        def ends_s(num_sequences: int) -> float | None:
            num_ends = num_sequences - num_free
            if num_ends <= 0 or not left:
                return 0.0
            if self._pacer.step_s is None:
                return None
            rounds, place = divmod(num_ends - 1, len(left))
            return (rounds * left[-1] + left[place]) * self._pacer.step_s

        return ends_s
