"""Estimates for speculation, learned from past steps: how often guesses hold, and the seconds of steps by their rows.

On the engine thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from dragoman.engine.rolling.speculate.proposer import NUM_STRENGTHS, Basis

_MEMORY = 0.98  # weight of earlier judgements, per guess with the same evidence
_PRIOR_WEIGHT = 4.0  # judged guesses that the prior counts as
_SEQUENCE_MEMORY = 0.88  # weight per sequence: texts change their nature
_SEQUENCE_WEIGHT = 1.5
_MOST = 0.995  # only a forced token is certain


# Shares of copied guesses that held, by the number of equal tokens before them, over five kinds of text: chat, summaries,
# edits, JSON, tool calls. Kinds differ as much as strengths do, so the prior counts little.
_OWN_TEXT = ((1, 0.45), (2, 0.5), (3, 0.7), (4, 0.8), (8, 0.87), (16, 0.92), (31, 0.97))
_RECENT_TEXT = ((1, 0.35), (2, 0.3), (3, 0.5), (4, 0.65), (8, 0.77), (16, 0.85), (31, 0.92))
_GRAMMAR = ((0, 0.65), (1, 0.97))  # by whether the last forced token may be the start of a longer one


def _prior(basis: int, strength: int) -> float:
    if basis == Basis.FORCED:
        return 1.0
    if basis == Basis.DRAFT_MODEL:
        return 0.1 + 0.85 * strength / (NUM_STRENGTHS - 1)
    known = {Basis.OWN_TEXT: _OWN_TEXT, Basis.RECENT_TEXT: _RECENT_TEXT, Basis.GRAMMAR: _GRAMMAR}[Basis(basis)]
    return max((share for least, share in known if strength >= least), default=known[0][1])


class Acceptance:
    """Shares of guesses that held, by `proposer.evidence`: for the engine, and relative to it for each sequence.

    Learned by comparing guesses with the sequences' next tokens.
    """

    def __init__(self) -> None:
        kinds = [(basis, strength) for basis in range(len(Basis)) for strength in range(NUM_STRENGTHS)]
        self._held = [_PRIOR_WEIGHT * _prior(*kind) for kind in kinds]
        self._judged = [_PRIOR_WEIGHT] * len(kinds)
        self._shares = [held / _PRIOR_WEIGHT for held in self._held]
        # By sequence and basis: held guesses, and their expected number by the shares alone; both fade.
        self._own: dict[tuple[int, int], tuple[float, float]] = {}

    def factor(self, sequence_id: int, evidence: int) -> float:
        """The factor by which this sequence's guesses of a basis hold more often than others; 1 = as often."""
        held, expected = self._own.get((sequence_id, evidence // NUM_STRENGTHS), (0.0, 0.0))
        return (held + _SEQUENCE_WEIGHT) / (expected + _SEQUENCE_WEIGHT)

    def share(self, evidence: int, factor: float) -> float:
        """The probability that a guess holds if all before it do. `factor`: its sequence's."""
        if evidence < NUM_STRENGTHS:  # Basis.FORCED
            return 1.0
        return min(self._shares[evidence] * factor, _MOST)

    def judge(self, sequence_id: int, evidence: int, *, holds: bool) -> None:
        if evidence < NUM_STRENGTHS:
            return
        share = self._shares[evidence]
        self._held[evidence] = self._held[evidence] * _MEMORY + holds
        self._judged[evidence] = self._judged[evidence] * _MEMORY + 1.0
        self._shares[evidence] = self._held[evidence] / self._judged[evidence]
        key = (sequence_id, evidence // NUM_STRENGTHS)
        held, expected = self._own.get(key, (0.0, 0.0))
        self._own[key] = (held * _SEQUENCE_MEMORY + holds, expected * _SEQUENCE_MEMORY + share)

    def retain(self, sequence_ids: Collection[int]) -> None:
        """Forget all other sequences, but not the engine's shares."""
        for key in [key for key in self._own if key[0] not in sequence_ids]:
            del self._own[key]


_NUM_KEPT = 12  # durations of each size
_MAX_AGE = 400  # steps after which a change is forgotten, and a size with fewer measurements than
_FEWEST = 4  # this many; a size with more of them is forgotten after
_OLDEST = 2_000  # this many steps
_FRESH = 128  # steps between measurements of a well-known size
_SLOPE = 0.02  # of the smallest known step, for a row without measurements: rather too low, so that it is tried
_LEAST_S = 1e-6  # of a step, also if the clock stood still or the usual cost of a change was higher
_LEAST_PART = 0.5  # of the smallest known step: the estimate for a step of hardly any rows
_CHANGE = 0.2  # of the smallest step: the cost of a change of rows until it is measured
_NUM_CHANGES = 16  # averaged values
_TRIED = 8
_FINEST = 16  # row counts up to this are sizes of their own
_STEPS_PER_OCTAVE = 8
_REFRESHED = 8  # steps after which the estimate of a well-known size is computed again
_SPARING = 4  # of steps that are like the last and well known, one in this many is measured
_SAME_CONTEXT = 0.05  # share by which the cost of contexts must differ to count as changed
_LEAST_ROWS = 2  # a single row is computed as two (see `forward.openvino_runner`)


def size_of(num_rows: int) -> int:
    """The largest number of rows of the same size: itself up to 16, then in steps of an eighth of a power of two."""
    if num_rows <= _FINEST:
        return num_rows
    grain = (1 << ((num_rows - 1).bit_length() - 1)) // _STEPS_PER_OCTAVE
    return -(-num_rows // grain) * grain


def _quicker(durations: list[float]) -> float:
    return sorted(durations)[len(durations) // 4]


class _Measured(NamedTuple):
    duration_s: float
    num_context: int
    number: int


class _Size:
    __slots__ = ("_quick", "_usual", "has_begun", "last", "steps")

    def __init__(self) -> None:
        self.steps: deque[_Measured] = deque(maxlen=_NUM_KEPT)
        self.last = 0  # the number of the last one, measured or not
        self.has_begun = False
        self._quick: tuple[float, float] | None = None
        self._usual: tuple[float, float] | None = None  # of (context_s, seconds)

    @property
    def is_well_known(self) -> bool:
        return len(self.steps) >= _FEWEST

    @property
    def is_full(self) -> bool:
        return len(self.steps) == _NUM_KEPT

    def add(self, step: _Measured) -> None:
        self.steps.append(step)
        self._quick = self._usual = None

    def forget(self, before: int) -> None:
        while self.steps and self.steps[0].number < before:
            self.steps.popleft()
            self._quick = self._usual = None

    def usual_s(self, context_s: float) -> float:
        """The first quartile of a step's seconds without its context. Never negative."""
        if self._usual is None or self._usual[0] != context_s:
            net_s = _quicker([step.duration_s - context_s * step.num_context for step in self.steps])
            self._usual = (context_s, max(net_s, 0.0))
        return self._usual[1]

    def quick(self) -> tuple[float, float]:
        """The first quartile of a step's seconds, with its context, and the mean context."""
        if self._quick is None:
            num_context = sum([step.num_context for step in self.steps]) / len(self.steps)
            self._quick = (_quicker([step.duration_s for step in self.steps]), num_context)
        return self._quick


class _Line(NamedTuple):
    rows: int
    seconds: float
    row_s: float


class RowCosts:
    """Estimates the seconds of decode steps by their rows, learned from durations.

    The estimate is a line through two points: the fewest and the most rows that were measured recently. Each row also
    reads its sequence's context. A step with another number of rows than the one before makes the runtime prepare its
    kernels again. Slow steps are due to other work on the machine, so the quicker durations count, and old ones are
    forgotten.
    """

    def __init__(self, context_share: float = 0.0) -> None:
        """`context_share`: the cost of a token of context that a row reads, as a share of the smallest step."""
        self._context_share = context_share
        self._sizes: dict[int, _Size] = {}
        self._num_steps = self._refresh_at = self._measured_at = 0
        self.last_rows = 0  # of the last step, at least 2: as many cost no change; 0 = it included prompts
        self._changes: deque[tuple[int, float]] = deque(maxlen=_NUM_CHANGES)  # of (step, seconds)
        self._context_s = 0.0
        self._line: _Line | None = None  # without context; None = outdated

    @property
    def context_s(self) -> float:
        """Seconds for each token of context that a row reads."""
        self._known()
        return self._context_s

    def change_s(self, num_rows: int) -> float:
        """The extra seconds of a step of `num_rows` rows because the last step had another number."""
        return 0.0 if max(num_rows, _LEAST_ROWS) == self.last_rows else self._usual_change_s()

    def note_prompts(self) -> None:
        """A step with prompts says nothing about rows."""
        self.last_rows = 0

    def skips(self, num_rows: int) -> bool:
        """True if a step of `num_rows` rows need not be measured, as the last ones of that size were; then counts it."""
        if max(num_rows, _LEAST_ROWS) != self.last_rows or self._num_steps + 1 >= self._measured_at:
            return False
        self._num_steps += 1
        return True

    def observe(self, num_rows: int, num_context: int, duration_s: float) -> None:
        """Learn that a step of `num_rows` rows, which read `num_context` tokens of context together, took `duration_s`.

        The first step of a size is ignored: the runtime chooses its kernels then.
        """
        self._num_steps += 1
        is_other = max(num_rows, _LEAST_ROWS) != self.last_rows
        self.last_rows, self._measured_at = max(num_rows, _LEAST_ROWS), 0
        size = self._sizes.setdefault(size_of(num_rows), _Size())
        size.last = self._num_steps
        if not size.has_begun:
            size.has_begun = True
            if len(self._sizes) > 1:
                return
        is_old = self._is_old(size)
        if is_other:
            if size.is_well_known and not is_old:
                usual_s = size.usual_s(self._context_s) + self._context_s * num_context
                self._changes.append((self._num_steps, min(max(duration_s - usual_s, 0.0), usual_s)))
                return
            duration_s = max(duration_s - self._usual_change_s(), 0.0) if self._changes else duration_s
        if is_old:
            size.forget(self._num_steps)
        if not size.is_full or self._num_steps >= self._refresh_at:
            self._line = None
        size.add(_Measured(max(duration_s, _LEAST_S), num_context, self._num_steps))
        if size.is_full:
            self._measured_at = self._num_steps + _SPARING

    def is_known(self, num_rows: int) -> bool:
        size = self._sizes.get(size_of(num_rows))
        return size is not None and bool(size.steps)

    def is_stale(self, num_rows: int) -> bool:
        size = self._sizes.get(size_of(num_rows))
        return size is not None and self._is_old(size)

    def is_doubtful(self, num_rows: int) -> bool:
        """True if the measurements of `num_rows` rows are old, or too few to rule out chance."""
        size = self._sizes.get(size_of(num_rows))
        return size is not None and bool(size.steps) and (not size.is_well_known or self._is_old(size))

    @property
    def most_rows(self) -> int:
        """The most rows with an estimate: twice as many as were measured, at least 8."""
        known = [rows for rows, size in self._sizes.items() if size.steps]
        return max(2 * max(known), _TRIED) if known else 0

    def seconds(self, num_rows: int) -> float:
        """Seconds of a step of `num_rows` rows after one with as many, without context. 0 without any measurement."""
        line = self._known()
        if line is None:
            return 0.0
        return max(line.seconds + line.row_s * (size_of(num_rows) - line.rows), _LEAST_PART * line.seconds)

    def further_row_s(self, num_rows: int) -> float | None:
        """The seconds of each further row; None = no step with more rows was measured."""
        line = self._known()
        if line is None or all(rows <= num_rows for rows, size in self._sizes.items() if size.steps):
            return None
        return line.row_s

    def _is_old(self, size: _Size) -> bool:
        return bool(size.steps) and size.steps[-1].number < self._num_steps - _FRESH

    def _usual_change_s(self) -> float:
        changes = self._changes
        while changes and changes[0][0] < self._num_steps - _MAX_AGE:
            changes.popleft()
        if changes:
            return sum([seconds for _, seconds in changes]) / len(changes)
        line = self._known()
        return _CHANGE * line.seconds if line is not None else 0.0

    def _context_cost(self) -> float:
        """Seconds per token of context: a share of the smallest step, bounded by the durations of larger ones.

        The share is too high for a small model. But a step with more rows never takes less than the smallest, apart
        from contexts.
        """
        known = sorted([(rows, size) for rows, size in self._sizes.items() if size.steps])
        if not known or not self._context_share:
            return 0.0
        share = self._context_share
        alone_s = _quicker([step.duration_s / (1 + share * step.num_context) for step in known[0][1].steps])
        context_s = share * alone_s
        for _, size in known[1:]:
            if size.is_well_known:
                usual_s, num_context = size.quick()
                left_s = max(usual_s - alone_s, 0.0)
                if context_s * num_context > left_s:
                    context_s = left_s / num_context
        return self._context_s if abs(context_s - self._context_s) < _SAME_CONTEXT * self._context_s else context_s

    def _known(self) -> _Line | None:
        """The line through the fewest and the most rows of recent measurements; None without any."""
        if self._line is None:
            self._refresh_at = self._num_steps + _REFRESHED
            self._forget()
            self._context_s = self._context_cost()
            known = [(rows, size) for rows, size in sorted(self._sizes.items()) if size.steps]
            if not known:
                return None
            fresh = [entry for entry in known if not self._is_old(entry[1])] or known
            sure = [entry for entry in fresh if entry[1].is_well_known]
            (fewest, least), (most, largest) = fresh[0], (sure if len(sure) > 1 else fresh)[-1]
            if fewest == most:  # of the others the farthest
                most, largest = max(known, key=lambda entry: abs(entry[0] - fewest))
            seconds = least.usual_s(self._context_s)
            if fewest == most:
                row_s = _SLOPE * seconds
            else:
                row_s = max((largest.usual_s(self._context_s) - seconds) / (most - fewest), 0.0)
            self._line = _Line(fewest, seconds, row_s)
        return self._line

    def _forget(self) -> None:
        oldest = self._num_steps - _OLDEST
        for rows, size in list(self._sizes.items()):
            size.forget(oldest)
            if size.last < (oldest if size.is_well_known else self._num_steps - _MAX_AGE):
                del self._sizes[rows]


_DEEPEST = 12
_WEIGHT = 0.05  # weight of the newest guess
_TIME_WEIGHT = 0.2
_TRIAL = 2  # guesses in a trial
_TRIAL_EVERY = 48  # steps without guesses after which a trial follows
_FIRST_SHARE = 0.7


class DraftDepth:
    """Chooses the number of tokens that a draft model guesses: each costs a forward pass."""

    def __init__(self) -> None:
        self._share = _FIRST_SHARE  # the share of guesses that hold if all before them do
        self._pass_s: float | None = None
        self._num_refused = 0

    def judge(self, evidence: int, *, holds: bool) -> None:
        """Ignores other proposers' guesses."""
        if evidence // NUM_STRENGTHS == Basis.DRAFT_MODEL:
            self._share += _WEIGHT * (holds - self._share)

    def observe(self, depth: int, duration_s: float) -> None:
        """Record that `depth` guesses for every sequence took `duration_s` together."""
        if depth:
            pass_s = duration_s / depth
            self._pass_s = pass_s if self._pass_s is None else self._pass_s + _TIME_WEIGHT * (pass_s - self._pass_s)

    def choose(self, costs: RowCosts, num_decoding: int, num_asking: int) -> int:
        """The number of tokens to guess for `num_asking` of `num_decoding` sequences; 0 = guessing does not pay."""
        step_s = costs.seconds(num_decoding)
        if self._pass_s is None or not step_s:
            return _TRIAL
        best, best_rate, expected, survival = 0, num_decoding / step_s, float(num_decoding), 1.0
        for depth in range(1, _DEEPEST + 1):
            survival *= self._share
            expected += num_asking * survival
            rate = expected / (costs.seconds(num_decoding + num_asking * depth) + depth * self._pass_s)
            if rate > best_rate:
                best, best_rate = depth, rate
        self._num_refused = 0 if best else self._num_refused + 1
        return best if best or self._num_refused % _TRIAL_EVERY else _TRIAL
