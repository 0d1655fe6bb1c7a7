"""Keeps requests in the background to a small part of the time while others run.

Does: learn how much longer steps take with rows and prompt tokens of the background, and say how much of these the next
step may have. Does not: schedule, or read a clock. Called by the scheduler, on the engine thread only.

Steps of others earn a part of their time, and what a step takes longer for the background is paid from that. So rows
that cost nothing, as the second of a step often does, are computed in every step; dear ones in as many as they may cost.
Others may lose a twentieth. Less is given away, because steps between those of the background are slower than they would be
without it, which nobody sees.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import dataclass

SHARE = 0.02  # of the time of steps that others are part of
_WEIGHT = 0.25  # of the newest measurement
_ALONE_S = 0.25  # that a step of the background alone may take for prompts: another request may come
_SAVED_S = 0.02  # that can be saved up, or a little work of the background if that takes longer
_TRIED_S = 1e-9
_NUM_KEPT = 64  # durations of steps of a size
_LEAST_PIECE = 16  # tokens of a prompt: fewer cost nearly as much


@dataclass(slots=True)
class Room:
    """The seconds that a step may take longer for the background, and what its rows and prompt tokens take of them."""

    seconds: float
    row_s: float
    token_s: float

    def num_tokens(self, *, is_decoding: bool) -> int:
        """The number of tokens of one sequence that the step may still compute."""
        if self.seconds < 0:
            return 0
        if is_decoding:
            return int(self.seconds >= self.row_s)
        most = self.seconds / self.token_s if self.token_s else math.inf
        return 0 if most < _LEAST_PIECE else int(min(most, 1 << 30))

    def take(self, num_tokens: int, *, is_decoding: bool) -> None:
        """Subtract the cost of `num_tokens` tokens of one sequence, which become part of the step."""
        self.seconds -= num_tokens * (self.row_s if is_decoding else self.token_s)


@dataclass(slots=True, frozen=True)
class StepParts:
    """The work of a step for others and for the background: rows that decode, and prompt tokens."""

    num_rows: int
    num_prompt_tokens: int
    num_background_rows: int
    num_background_tokens: int


class BackgroundAccount:
    """The account of step time that the background has earned and not used yet."""

    def __init__(self) -> None:
        self._earned_s = 0.0
        self._row_s: float | None = None  # that a row of the background takes; None = not known
        # Durations of steps of others' rows alone, by the binary size of their number.
        self._plain: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_NUM_KEPT))

    def room_beside(self, num_rows: int, prompt_token_s: float) -> Room:
        """The room of the next step for the background beside `num_rows` rows that decode for others."""
        plain_s = self._plain_s(num_rows)
        if num_rows and not plain_s:  # the step that tells comes first
            return Room(-1.0, 0.0, 0.0)
        if self._row_s is None:  # a single row tells
            seconds = max(self._earned_s, _TRIED_S) if self._earned_s >= 0 else -1.0
            return Room(seconds, seconds, prompt_token_s or seconds)
        return Room(self._earned_s, self._row_s, prompt_token_s or self._row_s)

    def room_alone(self, prompt_token_s: float) -> Room:
        """The room of a step for the background alone: prompts are cut, as another request may come meanwhile."""
        return Room(max(_ALONE_S, _LEAST_PIECE * prompt_token_s), 0.0, prompt_token_s)

    def observe(self, parts: StepParts, prompt_token_s: float, duration_s: float, *, is_wanted: bool = True) -> None:
        """Learn from a step and settle what it took. `is_wanted`: something is in the background; else nothing is earned."""
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
        if parts.num_prompt_tokens:  # what others' prompts took of the step nobody knows so exactly
            self._settle(SHARE * (duration_s - estimate_s) - estimate_s, prompt_token_s)
            return
        plain_s = self._plain_s(parts.num_rows)
        extra_s = duration_s - plain_s
        if parts.num_background_rows and not parts.num_background_tokens:
            self._row_s = _mixed(self._row_s, max(extra_s, 0.0) / parts.num_background_rows)
        self._settle(SHARE * plain_s - extra_s, prompt_token_s)

    def _plain_s(self, num_rows: int) -> float:
        """The seconds of an undisturbed step of `num_rows` rows: a quarter of those known were quicker. 0 = not known."""
        known = sorted(self._plain[num_rows.bit_length()])
        return known[len(known) // 4] if known else 0.0

    def _settle(self, seconds: float, prompt_token_s: float) -> None:
        """Nobody saves up for long, nor stays in debt for long: a slow moment of the machine is nobody's."""
        most_s = max(_SAVED_S, 2 * _LEAST_PIECE * prompt_token_s, 2 * (self._row_s or 0.0))
        self._earned_s = min(max(self._earned_s + seconds, -most_s), most_s)


def _mixed(known: float | None, new: float) -> float:
    return new if known is None else known + _WEIGHT * (new - known)
