"""Chooses how many tokens a draft model guesses: each costs a forward pass of it, before the guess is known to be good.

Does: learn what the draft model's passes take and how often its guesses hold, and choose a depth. Does not: run it. Called
by `speculation`, on the engine thread only.
"""

from __future__ import annotations

from dragoman.engine.rolling.speculate.proposer import NUM_STRENGTHS, Basis
from dragoman.engine.rolling.speculate.row_costs import RowCosts

_DEEPEST = 12
_WEIGHT = 0.05  # of the newest guess
_TIME_WEIGHT = 0.2
_TRIAL = 2  # guesses, to see
_TRIAL_EVERY = 48  # steps in which none would pay
_FIRST_SHARE = 0.7


class DraftDepth:
    """Chooses how many tokens ahead a draft model guesses."""

    def __init__(self) -> None:
        self._share = _FIRST_SHARE  # of guesses that hold if all before them do
        self._pass_s: float | None = None
        self._num_refused = 0

    def judge(self, evidence: int, *, holds: bool) -> None:
        """A guess held, or did not; those of others are passed over."""
        if evidence // NUM_STRENGTHS == Basis.DRAFT_MODEL:
            self._share += _WEIGHT * (holds - self._share)

    def observe(self, depth: int, duration_s: float) -> None:
        """Learn that `depth` guesses for every sequence took `duration_s` together."""
        if depth:
            pass_s = duration_s / depth
            self._pass_s = pass_s if self._pass_s is None else self._pass_s + _TIME_WEIGHT * (pass_s - self._pass_s)

    def choose(self, costs: RowCosts, num_decoding: int, num_asking: int) -> int:
        """The number of tokens to guess for each of `num_asking` of `num_decoding` sequences; 0 = it does not pay."""
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
