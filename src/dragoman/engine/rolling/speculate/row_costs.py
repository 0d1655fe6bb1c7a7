"""What rows cost: how long a step takes that decodes so many tokens, learned from the steps' own durations.

Does: keep durations of steps without prompts by their rows and the context that the rows read, and estimate others.
Does not: read a clock, or decide anything. Called by `speculation`, on the engine thread only.

A few rows more cost little while the weights are what a step waits for, and much where a kernel needs one pass more; each
row reads its sequence's context once more; and a step of other rows than the one before makes the runtime prepare its
kernels again, which takes as long as many rows. Only measuring tells. What is slower now and then is so because something
else computes, so the quicker durations count; what was measured a few times long ago is forgotten, so that a bad moment
does not count for ever.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

_NUM_KEPT = 12  # durations of each size
_MAX_AGE = 400  # steps after which a size is forgotten that was measured fewer than
_FEWEST = 4  # times
_SLOPE = 0.02  # of the smallest known step, for a row of which nothing is known: rather too little, so that it is tried
_CHANGE = 0.2  # of the smallest step: what a change of rows takes, until it is measured
_CHANGE_WEIGHT = 0.1
_TRIED = 8
_FINEST = 16  # rows up to which every number is a size of its own
_STEPS_PER_OCTAVE = 8
_REFRESHED = 8  # steps after which what is well known is worked out again
_LEAST_ROWS = 2  # a single row is computed as two (see `forward.openvino_runner`)


def size_of(num_rows: int) -> int:
    """The largest number of rows that counts as the same size: itself up to 16, then an eighth of a power of two."""
    if num_rows <= _FINEST:
        return num_rows
    grain = (1 << ((num_rows - 1).bit_length() - 1)) // _STEPS_PER_OCTAVE
    return -(-num_rows // grain) * grain


class _Size:
    """The last durations of steps of one size, in seconds, with their contexts, in tokens."""

    __slots__ = ("age", "has_begun", "steps")

    def __init__(self) -> None:
        self.steps: deque[tuple[float, float]] = deque(maxlen=_NUM_KEPT)
        self.age = 0  # the number of the step that was the last
        self.has_begun = False

    def usual_s(self, context_s: float) -> float:
        """What a step takes but for its context: a quarter of those known were quicker."""
        net = sorted(duration - context_s * context for duration, context in self.steps)
        return net[len(net) // 4]


class RowCosts:
    """Estimates durations of steps that only decode."""

    def __init__(self, context_share: float = 0.0) -> None:
        """`context_share`: what a token of context that a row reads takes of the smallest step."""
        self._context_share = context_share
        self._sizes: dict[int, _Size] = {}
        self._num_steps = self._refresh_at = 0
        self._last_rows = 0  # of the last step; 0 = it computed prompts, too
        self._change_s: float | None = None
        self._context_s = 0.0
        self._points: list[tuple[int, float]] | None = None  # of (rows, seconds) without context; None = to be made

    @property
    def last_rows(self) -> int:
        """Rows of the last step, at least 2: with as many the next one takes the least. 0 = there is no such number."""
        return self._last_rows

    @property
    def context_s(self) -> float:
        """Seconds for each token of context that a row reads.

        It follows from the sizes of cache and weights: durations vary by more than what contexts differ by.
        """
        self._known()
        return self._context_s

    def change_s(self, num_rows: int) -> float:
        """What a step of so many rows takes more because the last one had others."""
        return 0.0 if max(num_rows, _LEAST_ROWS) == self._last_rows else self._usual_change_s()

    def note_prompts(self) -> None:
        """A step with prompts was computed; it tells nothing about rows."""
        self._last_rows = 0

    def observe(self, num_rows: int, num_context: int, duration_s: float) -> None:
        """A step of so many rows that read so many tokens of context together took so long.

        The first step of a size is not counted: the runtime chooses its kernels then.
        """
        self._num_steps += 1
        is_other = max(num_rows, _LEAST_ROWS) != self._last_rows
        self._last_rows = max(num_rows, _LEAST_ROWS)
        size = self._sizes.setdefault(size_of(num_rows), _Size())
        size.age = self._num_steps
        if not size.has_begun:
            size.has_begun = True
            if len(self._sizes) > 1:
                return
        if is_other:
            if len(size.steps) >= _FEWEST:
                usual_s = size.usual_s(self._context_s) + self._context_s * num_context
                excess_s = min(max(duration_s - usual_s, 0.0), usual_s)
                change_s = self._usual_change_s()
                self._change_s = change_s + _CHANGE_WEIGHT * (excess_s - change_s)
                return
            duration_s = max(duration_s - (self._change_s or 0.0), 0.0)
        if len(size.steps) < _NUM_KEPT or self._num_steps >= self._refresh_at:
            self._points = None
        size.steps.append((duration_s, float(num_context)))

    @property
    def most_rows(self) -> int:
        """Rows beyond which nothing can be said: twice as many as were measured, at least 8."""
        points = self._known()
        return max(2 * points[-1][0], _TRIED) if points else 0

    def seconds(self, num_rows: int) -> float:
        """Of a step of so many rows after one of as many, but for its context. 0 if no step was ever measured."""
        points = self._known()
        if not points:
            return 0.0
        index = bisect_left(points, (num_rows, 0.0))
        if index == len(points):
            size, seconds = points[-1]
            slope = _SLOPE * points[0][1]
            if len(points) > 1:
                smaller, least = points[-2]
                slope = max(slope, (seconds - least) / (size - smaller))
            return seconds + (num_rows - size) * slope
        size, seconds = points[index]
        if not index:
            return seconds
        smaller, least = points[index - 1]
        return least + (seconds - least) * (num_rows - smaller) / (size - smaller)

    def _usual_change_s(self) -> float:
        if self._change_s is not None:
            return self._change_s
        points = self._known()
        return _CHANGE * points[0][1] if points else 0.0

    def _context_cost(self) -> float:
        """The share of the smallest step, of whose durations contexts are a part."""
        smallest = min((rows for rows, size in self._sizes.items() if size.steps), default=0)
        if not smallest:
            return 0.0
        share = self._context_share
        alone = sorted(duration / (1 + share * context) for duration, context in self._sizes[smallest].steps)
        return share * alone[len(alone) // 4]

    def _known(self) -> list[tuple[int, float]]:
        """(rows, seconds) of the sizes that were measured lately; a larger step never takes less."""
        if self._points is None:
            self._refresh_at = self._num_steps + _REFRESHED
            for rows, size in list(self._sizes.items()):
                if self._num_steps - size.age > _MAX_AGE and len(size.steps) < _FEWEST:
                    del self._sizes[rows]
            seconds = 0.0
            self._points = []
            self._context_s = self._context_cost()
            for rows in sorted(self._sizes):
                if self._sizes[rows].steps:
                    seconds = max(seconds, self._sizes[rows].usual_s(self._context_s))
                    self._points.append((rows, seconds))
        return self._points
