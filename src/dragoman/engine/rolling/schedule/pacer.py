"""Paces prompts, so that decoding sequences keep their rhythm. Called by the scheduler, on the engine thread.

A fixed piece of a prompt would be too long on a slow machine, and too short on a fast one. So its size follows from
measured durations of steps. Each waiting prompt adds an allowance: delaying many costs more than it gains. Source:
stall-free batching, arXiv:2403.02310, with a measured budget.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

# The smallest piece of a prompt. With smaller ones, where rows are expensive (AVX2), a step spends most of its time on the
# fixed cost of prompts. Then there are far more steps with prompts, and all streams wait longer in total.
_LEAST_PIECE = 16
_WEIGHT = 0.25  # the weight of the newest measurement
_MAX_AGE = 256  # steps after which the duration of a decode step is measured again
_NUM_KEPT = 64  # durations kept per size of decode steps
_FULL = 0.75  # of a full step: in smaller ones a token may cost more
_NUM_FULL_STEPS = 64


class Pacer:
    """Limits steps with more than 16 prompt tokens to `max_slowdown` times a decode step; 0 = no limit.

    `full_step_tokens` None = do not record full steps. `is_disturbed`: other work runs beside the steps. These only
    provide unknown values: otherwise prompts would get more time the slower everything is.
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
        """The first quartile of the kept durations."""
        known = sorted(self._decode_s[size])
        return known[len(known) // 4]


def _mixed(known: float | None, new: float) -> float:
    return new if known is None else known + _WEIGHT * (new - known)
