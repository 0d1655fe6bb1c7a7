"""Paces prompts, so that the sequences which decode keep their rhythm while others prefill, and steps have the best size.

Does: learn from the durations of the steps what decoding and a prompt token cost, and say how many prompt tokens the next
step may compute beside the decode rows. Does not: schedule, or read a clock. Called by the scheduler, on the engine thread
only.

A step that computes a long prompt's piece takes as long as that piece needs, and every stream waits for it. A fixed piece
is too long on a slow machine, or when one stream decodes, and too short on a fast one; durations tell which. Where many
prompts wait, holding each of them back would cost more than it gives: fewer sequences decode together, so each prompt that
is to be computed brings an allowance of its own.

Some kernels compute a token the fastest in steps of a certain size, and are slower in larger ones; then prompts fill a step
up to that size and wait for the next, whether anybody decodes or not. Others compute rows in panels: a panel's first row
costs as much as the next forty, so that prompts end a step with a whole panel rather than a little behind it.
Source: stall-free batching, arXiv:2403.02310, with a budget that is measured instead of set.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

from dragoman.engine.rolling.speculate.row_costs import PromptStep

_LEAST_CUT = 4  # prompt tokens: the least piece that the scheduler can cut anywhere
# A prompt always gets on, by so many tokens: with fewer, where rows are dear (AVX2), a step takes most of its time for
# computing a prompt at all, so that all streams wait longer in sum, as steps with prompts are so many.
_LEAST_PIECE = 16
_LEAST_ROOM = 16  # prompt tokens for which it pays to hold a step to the best size
_WEIGHT = 0.25  # of the newest measurement
_MAX_AGE = 256  # steps after which the duration of a decode step is measured again
_NUM_KEPT = 64  # durations of decode steps of a size
_FULL = 0.75  # of a full step: in smaller ones a token may cost more
_NUM_FULL_STEPS = 64


class Pacer:
    """Holds a step with more than 16 tokens of one prompt to `max_slowdown` times what one that only decodes takes; 0 = no
    limit.

    `best_step_tokens`: those of a step in which a token costs the least, None if a larger step is never worse.
    `panel_tokens`: a step of a few more than a multiple costs as if it had many more; None = there are no such panels.
    `full_step_tokens`: those of a step that is full; None = nothing is learned of such steps.
    `is_disturbed`: whether something else computes now beside the steps, as the tower does that embeds a picture. Nothing is
    learned from such a step but what is not known at all: prompts would be given more time, the slower everything is.
    """

    def __init__(
        self,
        max_slowdown: float,
        best_step_tokens: int | None = None,
        panel_tokens: int | None = None,
        is_disturbed: Callable[[], bool] = lambda: False,
        full_step_tokens: int | None = None,
    ) -> None:
        """Raises: ValueError if `max_slowdown` is negative."""
        if not max_slowdown >= 0:
            raise ValueError(f"max_slowdown is {max_slowdown}, must be 0 (no limit) or more")
        self._max_slowdown = max_slowdown
        self._best_step_tokens = best_step_tokens
        self._panel_tokens = panel_tokens
        self._is_disturbed = is_disturbed
        self._was_disturbed = False  # when the step was planned
        # Durations in seconds by the binary size of the number of rows that decode: within a size they differ little.
        self._decode_s: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_NUM_KEPT))
        self._ages: dict[int, int] = {}
        self._prompt_token_s: float | None = None
        self._full_step_tokens = full_step_tokens
        self._full_token_s: deque[float] = deque(maxlen=_NUM_FULL_STEPS)

    @property
    def least_prompt_token_s(self) -> float | None:
        """Seconds for a prompt token in the quickest of the last full steps; None = there was none."""
        return min(self._full_token_s, default=None)

    def prompt_step(self, num_decoding: int) -> PromptStep:
        """What guesses beside so many sequences that decode are held against, and how many leave prompts their room."""
        room = self._room(num_decoding)
        return PromptStep(self._prompt_token_s or 0.0, None if room is None else room - _LEAST_ROOM)

    def prompt_budget(self, num_rows: int, num_prompts: int, num_prompt_tokens: int) -> int | None:
        """Tokens of `num_prompts` prompts that the next step may compute beside rows that decode; None = any number.

        `num_prompt_tokens`: those that it would compute if there was no budget.
        0 asks for a step without prompts, because the duration of such a step is not known, or no longer.
        """
        self._was_disturbed = self._is_disturbed()
        if not num_prompts:
            return None
        limits = (self._room(num_rows), self._even_piece(num_rows, num_prompts))
        budget = min((limit for limit in limits if limit is not None), default=None)
        expected = num_prompt_tokens if budget is None else min(budget, num_prompt_tokens)
        excess = self._excess(num_rows, expected)
        return expected - excess if excess else budget

    def _excess(self, num_rows: int, num_prompt_tokens: int) -> int:
        """The prompt tokens behind the last whole panel; 0 if they are more than half of one, or it is needed anyway."""
        if self._panel_tokens is None or num_rows + num_prompt_tokens <= self._panel_tokens:
            return 0
        excess = (num_rows + num_prompt_tokens) % self._panel_tokens
        return excess if 2 * excess <= self._panel_tokens and num_prompt_tokens - excess >= _LEAST_CUT else 0

    def _room(self, num_rows: int) -> int | None:
        """What the decode rows leave of the best size; None if that is too little, and the step becomes larger anyway."""
        if self._best_step_tokens is None:
            return None
        room = self._best_step_tokens - num_rows
        return room if room >= _LEAST_ROOM else None

    def _even_piece(self, num_rows: int, num_prompts: int) -> int | None:
        if not num_rows or not self._max_slowdown:
            return None
        size = num_rows.bit_length()
        if not self._decode_s[size] or self._ages[size] >= _MAX_AGE:
            return 0
        if self._prompt_token_s is None:
            return _LEAST_PIECE
        allowed_s = (self._max_slowdown - 1) * self._quiet_s(size) * num_prompts
        return max(_LEAST_PIECE, int(allowed_s / self._prompt_token_s))

    def observe(self, num_rows: int, num_prompt_tokens: int, duration_s: float) -> None:
        """Learn from a step that computed so many rows that decode and prompt tokens."""
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
        """What a decode step takes while nothing else computes, as a picture may: a quarter of those known were quicker."""
        known = sorted(self._decode_s[size])
        return known[len(known) // 4]


def _mixed(known: float | None, new: float) -> float:
    return new if known is None else known + _WEIGHT * (new - known)
