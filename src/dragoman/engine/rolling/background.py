"""Limits background requests to a small part of the time while others run. On the engine thread.

Steps of other requests earn a part of their time, which pays for the background's extra time: free rows run in every
step, expensive ones as often as earned. Others may lose a twentieth of their time; less is earned, as the background
also slows the steps between its own.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import dataclass

_WEIGHT = 0.25  # weight of the newest measurement
SHARE = 0.02  # of the time of steps with other requests
_ALONE_S = 0.25  # for prompts in a step of the background alone: another request may arrive
_SAVED_S = 0.02  # the most that can be saved up, unless a little background work takes longer
_TRIED_S = 1e-9
_NUM_KEPT = 64  # durations kept per size of steps
_LEAST_PIECE = 16  # tokens of a prompt: fewer cost nearly as much


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
    """The step time that the background has earned and not yet used."""

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
        """The first quartile of the seconds of steps of `num_rows` rows; 0 = unknown."""
        known = sorted(self._plain[num_rows.bit_length()])
        return known[len(known) // 4] if known else 0.0

    def _settle(self, seconds: float, prompt_token_s: float) -> None:
        most_s = max(_SAVED_S, 2 * _LEAST_PIECE * prompt_token_s, 2 * (self._row_s or 0.0))
        self._earned_s = min(max(self._earned_s + seconds, -most_s), most_s)


def _mixed(known: float | None, new: float) -> float:
    return new if known is None else known + _WEIGHT * (new - known)
