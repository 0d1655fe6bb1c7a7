"""Chooses the number of tokens that a draft model guesses: each costs a forward pass. On the engine thread only."""

from __future__ import annotations

from dragoman.engine.rolling.speculate.proposer import NUM_STRENGTHS, Basis
from dragoman.engine.rolling.speculate.row_costs import RowCosts

_DEEPEST = 12
_WEIGHT = 0.05  # weight of the newest guess
_TIME_WEIGHT = 0.2
_TRIAL = 2  # guesses in a trial
_TRIAL_EVERY = 48  # steps without guesses after which a trial follows
_FIRST_SHARE = 0.7


class DraftDepth:
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
