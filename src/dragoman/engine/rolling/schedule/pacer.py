"""Paces prompts, so that the sequences which decode keep their rhythm while others prefill.

Does: learn from the durations of steps what a step, a decode row and a prompt token cost. Say how many prompt tokens the
next step may compute beside the decode rows. Does not: schedule, or read a clock. Called by the scheduler, on the engine
thread only.

A step that computes a long prompt's piece takes as long as that piece needs, and every stream waits for it. A fixed piece
is too long on a slow machine, or when one stream decodes, and too short on a fast one; durations tell which. Where many
prompts wait, holding each of them back would cost more than it gives: fewer sequences decode together, so each prompt that
is to be computed brings an allowance of its own.
Source: stall-free batching, arXiv:2403.02310, with a budget that is measured instead of set.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

# A prompt always gets on by at least this many tokens. With fewer, where rows are dear (AVX2), a step spends most of its
# time on computing a prompt at all: there are then so much more steps with prompts that all streams wait longer in sum.
_LEAST_PIECE = 16
_WEIGHT = 0.25  # of the newest measurement
_MAX_AGE = 256  # steps after which the duration of a decode step is measured again
_NUM_KEPT = 64  # durations of decode steps of a size
_FULL = 0.75  # of a full step: in smaller ones a token may cost more
_NUM_FULL_STEPS = 64


class Pacer:
    """Holds a step with more than 16 tokens of one prompt to `max_slowdown` times what one that only decodes takes; 0 = no
    limit.

    `full_step_tokens`: those of a step that is full; None = nothing is learned of such steps.
    `is_disturbed`: whether something else computes now beside the steps, as the tower does that embeds a picture. Nothing is
    learned from such a step but what is not known at all: prompts would be given more time, the slower everything is.
    """

    def __init__(
        self,
        max_slowdown: float,
        is_disturbed: Callable[[], bool] = lambda: False,
        full_step_tokens: int | None = None,
    ) -> None:
        """Raises: ValueError if `max_slowdown` is negative."""
        if not max_slowdown >= 0:
            raise ValueError(f"max_slowdown is {max_slowdown}, must be 0 (no limit) or more")
        self._max_slowdown = max_slowdown
        self._is_disturbed = is_disturbed
        self._was_disturbed = False  # when the step was planned
        # Durations in seconds by the binary size of the number of rows that decode: within a size they differ little.
        self._decode_s: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_NUM_KEPT))
        self._ages: dict[int, int] = {}
        self._prompt_token_s: float | None = None
        self.step_s: float | None = None  # of the last steps; None = not known, as below
        self.whole_prompt_token_s: float | None = None  # in steps with prompts, all that decodes beside them included
        self._full_step_tokens = full_step_tokens
        self._full_token_s: deque[float] = deque(maxlen=_NUM_FULL_STEPS)

    @property
    def least_prompt_token_s(self) -> float | None:
        """Seconds for a prompt token in the quickest of the last full steps; None = there was none."""
        return min(self._full_token_s, default=None)

    @property
    def prompt_token_s(self) -> float:
        """Seconds for a prompt token of late; 0 = not known."""
        return self._prompt_token_s or 0.0

    def prompt_budget(self, num_rows: int, num_prompts: int) -> int | None:
        """Tokens of `num_prompts` prompts that the next step may compute beside rows that decode; None = any number.

        0 asks for a step without prompts, because the duration of such a step is not known, or no longer.
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
        """Learn from a step: its rows that decode, its prompt tokens, its duration."""
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
            if self._ages.get(size, 0) >= _MAX_AGE:  # contexts have grown, or others come and go
                known.clear()
            known.append(duration_s)
            self._ages[size] = 0

    def _quiet_s(self, size: int) -> float:
        """The seconds of a decode step while nothing else computes: a quarter of those known were quicker."""
        known = sorted(self._decode_s[size])
        return known[len(known) // 4]


def _mixed(known: float | None, new: float) -> float:
    return new if known is None else known + _WEIGHT * (new - known)
