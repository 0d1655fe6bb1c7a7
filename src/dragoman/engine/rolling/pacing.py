"""Paces prompts and background requests, so that decoding sequences keep their rhythm. On the engine thread.

A fixed piece of a prompt would be too long on a slow machine, and too short on a fast one. So its size follows from
measured durations of steps. Source: stall-free batching, arXiv:2403.02310, with a measured budget.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

# The smallest piece of a prompt. With smaller ones, where rows are expensive (AVX2), a step spends most of its time on the
# fixed cost of prompts. Then there are far more steps with prompts, and all streams wait longer in total.
_LEAST_PIECE = 16
_WEIGHT = 0.25  # the weight of the newest measurement
_MAX_AGE = 256  # steps after which the duration of a decode step is measured again
_NUM_KEPT = 64  # durations kept per size of steps without prompts
_FULL = 0.75  # of a full step: in smaller ones a token may cost more
_NUM_FULL_STEPS = 64

SHARE = 0.02  # of the time of steps with other requests
_ALONE_S = 0.25  # for prompts in a step of the background alone: another request may arrive
_SAVED_S = 0.02  # the most that can be saved up, unless a little background work takes longer
_TRIED_S = 1e-9


class Pacer:
    """Limits steps with more than 16 prompt tokens to `max_slowdown` times a decode step; 0 = no limit.

    Each waiting prompt adds an allowance: delaying many costs more than it gains. `full_step_tokens` None = do not
    record full steps. `is_disturbed`: other work runs beside the steps. These only provide unknown values: otherwise
    prompts would get more time the slower everything is.
    """

    def __init__(
        self,
        max_slowdown: float,
        is_disturbed: Callable[[], bool] = lambda: False,
        full_step_tokens: int | None = None,
    ) -> None:
        if not max_slowdown >= 0:
            raise ValueError(f"max_slowdown is {max_slowdown}, must be 0 (no limit) or more")
        self._max_slowdown = max_slowdown
        self._is_disturbed = is_disturbed
        self._was_disturbed = False  # when the step was planned
        # Durations in seconds by the bit length of the number of decode rows: within such a size they differ little.
        self._decode_s: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_NUM_KEPT))
        self._ages: dict[int, int] = {}
        self._prompt_token_s: float | None = None
        self.step_s: float | None = None  # mean of the last steps; None = unknown
        self.whole_prompt_token_s: float | None = None  # in steps with prompts, including the cost of decode rows
        self._full_step_tokens = full_step_tokens
        self._full_token_s: deque[float] = deque(maxlen=_NUM_FULL_STEPS)

    @property
    def least_prompt_token_s(self) -> float | None:
        """Seconds per prompt token in the quickest of the last full steps; None = unknown."""
        return min(self._full_token_s, default=None)

    @property
    def prompt_token_s(self) -> float:
        """Recent seconds per prompt token; 0 = unknown."""
        return self._prompt_token_s or 0.0

    def prompt_budget(self, num_rows: int, num_prompts: int) -> int | None:
        """Tokens of prompts that the next step may compute beside decode rows; None = any number.

        0 requests a step without prompts, to measure its duration.
        """
        self._was_disturbed = self._is_disturbed()
        if not num_prompts or not num_rows or not self._max_slowdown:
            return None
        size = num_rows.bit_length()
        if not self._decode_s[size] or self._ages[size] >= _MAX_AGE:
            return 0
        if self._prompt_token_s is None:
            return _LEAST_PIECE
        allowed_s = (self._max_slowdown - 1) * self._quiet_s(size) * num_prompts
        return max(_LEAST_PIECE, int(allowed_s / self._prompt_token_s))

    def observe(self, num_rows: int, num_prompt_tokens: int, duration_s: float) -> None:
        self.step_s = _mixed(self.step_s, duration_s)
        if num_prompt_tokens:
            self.whole_prompt_token_s = _mixed(self.whole_prompt_token_s, duration_s / num_prompt_tokens)
        size = num_rows.bit_length()
        known = self._decode_s[size]
        is_known = bool(known) and self._ages[size] < _MAX_AGE
        if num_prompt_tokens:
            is_known = self._prompt_token_s is not None
        if is_known and (self._was_disturbed or self._is_disturbed()):
            return
        if num_prompt_tokens:
            decode_s = self._quiet_s(size) if num_rows and known else 0.0
            if decode_s:
                self._ages[size] += 1
            cost_s = max(duration_s - decode_s, 0.05 * duration_s) / num_prompt_tokens
            self._prompt_token_s = _mixed(self._prompt_token_s, cost_s)
            if self._full_step_tokens is not None and num_prompt_tokens >= _FULL * self._full_step_tokens:
                self._full_token_s.append(cost_s)
        elif num_rows:
            if self._ages.get(size, 0) >= _MAX_AGE:  # contexts have grown, or the machine's load has changed
                known.clear()
            known.append(duration_s)
            self._ages[size] = 0

    def _quiet_s(self, size: int) -> float:
        return _first_quartile(self._decode_s[size])


@dataclass(slots=True)
class Room:
    """The extra seconds that a step may take for the background, and the costs of its rows and prompt tokens."""

    seconds: float
    row_s: float
    token_s: float

    def num_tokens(self, *, is_decoding: bool) -> int:
        if self.seconds < 0:
            return 0
        if is_decoding:
            return int(self.seconds >= self.row_s)
        most = self.seconds / self.token_s if self.token_s else math.inf
        return 0 if most < _LEAST_PIECE else int(min(most, 1 << 30))

    def take(self, num_tokens: int, *, is_decoding: bool) -> None:
        self.seconds -= num_tokens * (self.row_s if is_decoding else self.token_s)


@dataclass(slots=True, frozen=True)
class StepParts:
    num_rows: int
    num_prompt_tokens: int
    num_background_rows: int
    num_background_tokens: int


class BackgroundAccount:
    """The step time that background requests have earned and not yet used.

    Steps of other requests earn a part of their time, which pays for the background's extra time: free rows run in
    every step, expensive ones as often as earned. Others may lose a twentieth of their time; less is earned, as the
    background also slows the steps between its own.
    """

    def __init__(self) -> None:
        self._earned_s = 0.0
        self._row_s: float | None = None  # of a background row; None = unknown
        # Durations of steps with only others' rows, by the bit length of their number.
        self._plain: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_NUM_KEPT))

    def room_beside(self, num_rows: int, prompt_token_s: float) -> Room:
        plain_s = self._plain_s(num_rows)
        if num_rows and not plain_s:  # measure such a step first
            return Room(-1.0, 0.0, 0.0)
        if self._row_s is None:  # measure with a single row
            seconds = max(self._earned_s, _TRIED_S) if self._earned_s >= 0 else -1.0
            return Room(seconds, seconds, prompt_token_s or seconds)
        return Room(self._earned_s, self._row_s, prompt_token_s or self._row_s)

    def room_alone(self, prompt_token_s: float) -> Room:
        """The room of a step for the background alone: prompts are cut, as another request may arrive."""
        return Room(max(_ALONE_S, _LEAST_PIECE * prompt_token_s), 0.0, prompt_token_s)

    def observe(self, parts: StepParts, prompt_token_s: float, duration_s: float, *, is_wanted: bool = True) -> None:
        """Learn from a step and settle its cost. `is_wanted`: there are background requests; otherwise nothing is earned."""
        if not (parts.num_rows or parts.num_prompt_tokens):
            return
        if not (parts.num_background_rows or parts.num_background_tokens):
            if parts.num_rows and not parts.num_prompt_tokens:
                self._plain[parts.num_rows.bit_length()].append(duration_s)
            if is_wanted:
                self._settle(SHARE * duration_s, prompt_token_s)
            else:
                self._earned_s = min(self._earned_s, 0.0)
            return
        estimate_s = parts.num_background_rows * (self._row_s or 0.0) + parts.num_background_tokens * prompt_token_s
        if parts.num_prompt_tokens:  # the cost of others' prompts is not known exactly enough
            self._settle(SHARE * (duration_s - estimate_s) - estimate_s, prompt_token_s)
            return
        plain_s = self._plain_s(parts.num_rows)
        extra_s = duration_s - plain_s
        if parts.num_background_rows and not parts.num_background_tokens:
            self._row_s = _mixed(self._row_s, max(extra_s, 0.0) / parts.num_background_rows)
        self._settle(SHARE * plain_s - extra_s, prompt_token_s)

    def _plain_s(self, num_rows: int) -> float:
        """The usual seconds of steps of `num_rows` rows; 0 = unknown."""
        known = self._plain[num_rows.bit_length()]
        return _first_quartile(known) if known else 0.0

    def _settle(self, seconds: float, prompt_token_s: float) -> None:
        most_s = max(_SAVED_S, 2 * _LEAST_PIECE * prompt_token_s, 2 * (self._row_s or 0.0))
        self._earned_s = min(max(self._earned_s + seconds, -most_s), most_s)


def _mixed(known: float | None, new: float) -> float:
    return new if known is None else known + _WEIGHT * (new - known)


def _first_quartile(durations: Collection[float]) -> float:
    return sorted(durations)[len(durations) // 4]
