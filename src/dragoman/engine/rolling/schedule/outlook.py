"""Estimates what waiting requests may expect: whether the first token can come in time, their progress, their turn.

Called by the scheduler, on the engine thread; `ask` and `rows` of the board are for any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Rows

from dragoman.engine.base import PromptProgress
from dragoman.engine.rolling.blocks.block_pools import BlockPools
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.pacing import Pacer
from dragoman.engine.rolling.schedule.capacity import Admission
from dragoman.engine.rolling.schedule.fair_queue import FairQueue
from dragoman.engine.rolling.sequence import Sequence, SequenceGroup

_LEAST_S = 0.25  # between two updates
_SHARE = 50  # an update takes a fiftieth of the time at most, however long the queue is


class Outlook:
    """Estimates whether a request can have its first token in time. `running` and `queue` belong to the scheduler.

    It errs in favour of the request: tokens cost as little as in the quickest of the last full steps, and blocks that
    are cached, stored or shared cost nothing. Of the waiting requests only those count that surely begin before it.
    """

    def __init__(
        self,
        config: RollingConfig,
        blocks: BlockPools,
        running: list[Sequence],
        queue: FairQueue,
        match_stored: Callable[[Rows[bytes]], int] | None = None,
    ) -> None:
        """`match_stored`: the length in blocks of the longest prefix that is cached or on disk."""
        self._finds_prefixes = config.prefix_cache != "off"
        self._blocks = blocks
        self._running = running
        self._queue = queue
        self._match_stored = match_stored

    def tokens_beyond(self, group: SequenceGroup, most: float) -> int | None:
        """Prompt tokens to compute before a waiting group's first token, if surely more than `most`; else None."""
        ahead = [other.sequences[0] for other in self._queue.ahead_of(group)]
        prefilling = [
            sequence
            for sequence in self._running
            if sequence.group.priority >= group.priority and not sequence.is_decoding
        ]
        prompts = [*prefilling, *ahead, group.sequences[0]]
        if sum(_num_left(sequence) for sequence in prompts) <= most:  # the usual case
            return None
        return self._more_than(most, prompts)

    def _more_than(self, most: float, prompts: Iterable[Sequence]) -> int | None:
        total, seen = 0, set[bytes]()
        for sequence in prompts:
            total += self._num_new(sequence, seen)
            if total > most:
                return total
        return None

    def _num_new(self, sequence: Sequence, seen: set[bytes]) -> int:
        """The tokens that neither are computed nor will be for an earlier request; adds their blocks to `seen`."""
        num_left = _num_left(sequence)
        if not self._finds_prefixes:
            return num_left
        size = self._blocks.block_size
        num_blocks = sequence.num_tokens // size
        sequence.extend_digests(size, num_blocks)
        digests = sequence.digests[:num_blocks]
        num_known = sequence.num_computed_tokens // size
        if not num_known:
            num_known = self._num_known(digests)
        fresh = [digest for digest in digests[num_known:] if digest not in seen]
        seen.update(fresh)
        return min(num_left, len(fresh) * size + sequence.num_tokens % size)

    def _num_known(self, digests: Rows[bytes]) -> int:
        if self._match_stored is not None:
            return self._match_stored(digests)
        return self._blocks.match_prefix(digests, self._blocks.no_prefix).length


class ProgressBoard:
    """The progress of requests. `rows`: by a group's key, at the last update. `is_asked`: the next step updates them.

    The time until the first token is a forecast: prompts in the queue's order, at the pace of the last steps.
    """

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
            num_tokens += _num_left(sequence)
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


def _num_left(sequence: Sequence) -> int:
    return sequence.num_tokens - sequence.num_computed_tokens
