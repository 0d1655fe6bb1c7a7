"""Filters that narrow one row's distribution before the draw: top-k, top-p, min-p, locally typical; and the draw itself.

Does: find the surviving tokens exactly, by thresholds and partial sorts (never sorting a vocabulary). Does not: know
sequences or randomness; a row's result depends on its logits, its parameters and the number drawn, never on other rows.
Called by the sampler on the engine thread.
"""

from __future__ import annotations

import math
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from dragoman.types import SamplingParams

FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]

_COLUMN_HEIGHT = 64  # a row of logits is also seen as a [64, n] table, whose columns are summed and maximised at once
_HEAD_SIZES = (64, 1024)  # how many of the best tokens are looked at first; for a trained model usually enough
_SORT_LIMIT = 4096  # sets up to this size are sorted, larger ones are first narrowed by a histogram
_NUM_BUCKETS = 4096
_MIN_SPAN = 1e-30  # keys closer than this count as equal; dividing by the span stays within float32
_MIN_TEMPERATURE = 1e-6  # below it float32 quotients overflow; the result is already greedy
_NO_SCORE = -200.0  # exp(-200) is 0 in float32: stands for -inf where -inf * 0 would be NaN


class Scratch:
    """Two reusable row buffers, padded to whole columns; the padding is never a candidate."""

    def __init__(self, vocab_size: int) -> None:
        width = -(-vocab_size // _COLUMN_HEIGHT) * _COLUMN_HEIGHT
        self.vocab_size = vocab_size
        self.scores: FloatArray = np.full(width, -np.inf, dtype=np.float32)
        self.weights: FloatArray = np.zeros(width, dtype=np.float32)


class Survivors:
    """The tokens still in the running, in ascending id order.

    `scores` are logits divided by the temperature, minus the largest one: <= 0. `weights` = exp(scores), unnormalised.
    `ids` None = every token, and the arrays are the scratch buffers, padded: they are valid until the next row.
    """

    __slots__ = ("_scratch", "_total", "_weights", "ids", "scores")

    def __init__(self, ids: IndexArray | None, scores: FloatArray, scratch: Scratch) -> None:
        self.ids = ids
        self.scores = scores
        self._scratch = scratch
        self._weights: FloatArray | None = None
        self._total: float | None = None

    @property
    def weights(self) -> FloatArray:
        """exp(scores), computed when first needed."""
        if self._weights is None:
            self._weights = np.exp(self.scores, out=self._scratch.weights if self.ids is None else None)
        return self._weights

    @property
    def total(self) -> float:
        """The sum of the weights."""
        if self._total is None:
            self._total = float(np.add.reduce(self.weights))
        return self._total

    def keep(self, indices: IndexArray) -> Survivors:
        """Only the survivors at `indices` (ascending)."""
        kept = Survivors(indices if self.ids is None else self.ids[indices], self.scores[indices], self._scratch)
        if self._weights is not None:
            kept._weights = self._weights[indices]
        return kept

    def draw(self, uniform: float) -> int:
        """The token at `uniform` (in [0, 1)) of the cumulative distribution."""
        if self.ids is not None:
            return int(self.ids[_pick(np.cumsum(self.weights, dtype=np.float64), uniform)])
        # Every token is a candidate: choose a column by its sum, then a token inside the column.
        table = self.weights.reshape(_COLUMN_HEIGHT, -1)
        cumulative = np.cumsum(table.sum(axis=0), dtype=np.float64)
        column = _pick(cumulative, uniform)
        before = float(cumulative[column - 1]) if column else 0.0
        share = (uniform * float(cumulative[-1]) - before) / (float(cumulative[column]) - before)
        line = _pick(np.cumsum(table[:, column], dtype=np.float64), min(max(share, 0.0), 1.0))
        return line * table.shape[1] + column

    def probabilities(self) -> DoubleArray:
        """The exact distribution `draw` follows, [V]; sums to 1, exact zeros for everything else."""
        dense: DoubleArray = np.zeros(self._scratch.vocab_size)
        if self.ids is None:
            dense[:] = self.weights[: dense.size]
        else:
            dense[self.ids] = self.weights
        dense /= dense.sum()
        return dense


class LogitsFilter(Protocol):
    """One narrowing of the distribution."""

    is_argmax_invariant: ClassVar[bool]  # True = the most likely token always survives

    def is_needed(self, params: SamplingParams) -> bool:
        """True if the parameters switch the filter on."""
        ...

    def apply(self, survivors: Survivors, params: SamplingParams) -> Survivors:
        """The survivors of the survivors: at least one."""
        ...


class Temperature:
    """Scales the logits: the first step, which makes all tokens candidates."""

    is_argmax_invariant: ClassVar[bool] = True

    def apply(self, logits: FloatArray, maximum: np.float32, params: SamplingParams, scratch: Scratch) -> Survivors:
        """Every token, scored. Shapes: logits [V], finite or -inf; `maximum` is the largest of them."""
        scores = np.subtract(logits, maximum, out=scratch.scores[: logits.size])
        if params.temperature != 1.0:
            np.divide(scores, np.float32(max(params.temperature, _MIN_TEMPERATURE)), out=scores)
        return Survivors(None, scratch.scores, scratch)


class TopK:
    """Keeps the k most likely tokens; of equally likely ones those with the lowest ids."""

    is_argmax_invariant: ClassVar[bool] = True

    def is_needed(self, params: SamplingParams) -> bool:
        return params.top_k > 0

    def apply(self, survivors: Survivors, params: SamplingParams) -> Survivors:
        return survivors.keep(largest(survivors.scores, params.top_k))


class TopP:
    """Keeps the smallest set of most likely tokens whose probabilities reach p.

    Source: nucleus sampling, arXiv:1904.09751, section 3.1.
    """

    is_argmax_invariant: ClassVar[bool] = True

    def is_needed(self, params: SamplingParams) -> bool:
        return params.top_p < 1.0

    def apply(self, survivors: Survivors, params: SamplingParams) -> Survivors:
        return survivors.keep(first_by_mass(survivors.scores, survivors.weights, params.top_p * survivors.total))


class MinP:
    """Keeps the tokens at least `min_p` times as likely as the most likely one.

    Source: arXiv:2407.01082, section 3.
    """

    is_argmax_invariant: ClassVar[bool] = True

    def is_needed(self, params: SamplingParams) -> bool:
        return params.min_p > 0.0

    def apply(self, survivors: Survivors, params: SamplingParams) -> Survivors:
        return survivors.keep(np.flatnonzero(survivors.scores >= np.float32(math.log(params.min_p))))


class TypicalP:
    """Keeps the smallest set of tokens nearest to the distribution's entropy whose probabilities reach p.

    Source: locally typical sampling, arXiv:2202.00666, section 4.
    """

    is_argmax_invariant: ClassVar[bool] = False

    def is_needed(self, params: SamplingParams) -> bool:
        return params.typical_p < 1.0

    def apply(self, survivors: Survivors, params: SamplingParams) -> Survivors:
        scores, weights, total = survivors.scores, survivors.weights, survivors.total
        # Information content is log(total) - score and the entropy is its mean, so log(total) drops out of the difference.
        mean_score = float(np.add.reduce(np.maximum(scores, np.float32(_NO_SCORE)) * weights)) / total
        closeness = -np.abs(scores - np.float32(mean_score))
        return survivors.keep(first_by_mass(closeness, weights, params.typical_p * total))


FILTERS: tuple[LogitsFilter, ...] = (TopK(), TopP(), MinP(), TypicalP())
"""The filters in the order they are applied, after the temperature."""


# --- exact selection without sorting everything -----------------------------------------------------------------------


def largest(values: FloatArray, k: int) -> IndexArray:
    """Indices (ascending) of the k largest values, fewer if fewer are above -inf; of equal ones the first."""
    if k <= 0:
        return np.zeros(0, dtype=np.intp)
    candidates = _reaching(values, k)
    if candidates.size <= k:
        return candidates
    found = values[candidates]
    threshold = np.partition(found, found.size - k)[found.size - k]
    chosen = found > threshold
    num_ties = k - int(np.count_nonzero(chosen))
    chosen[np.flatnonzero(found == threshold)[:num_ties]] = True
    return candidates[chosen]


def ranked(values: FloatArray, k: int) -> IndexArray:
    """Indices of the k largest values, best first; of equal ones the first."""
    indices = largest(values, k)
    return indices[np.argsort(-values[indices], kind="stable")]


def first_by_mass(keys: FloatArray, weights: FloatArray, target: float) -> IndexArray:
    """Indices (ascending) of the smallest set of largest keys whose weights sum to `target`; of equal keys the first.

    Keys of -inf never belong to it. All others do if rounding keeps their sum below `target`.
    """
    for size in _HEAD_SIZES:
        if size * 4 < keys.size:
            kept = _shortest_prefix(keys, weights, _reaching(keys, size), target)
            if kept is not None:
                return np.sort(kept)
    return _narrow(keys, weights, target)


def _reaching(values: FloatArray, k: int) -> IndexArray:
    """Indices (ascending) of a small set that holds the k largest values; -inf is left out."""
    bound = _lower_bound(values, k) if k < values.size else -np.inf
    return np.flatnonzero(values >= bound if bound > -np.inf else values > -np.inf)


def _lower_bound(values: FloatArray, k: int) -> np.float32:
    """A value that at least k of `values` reach, and not many more: the k-th largest of the maxima of disjoint columns."""
    for height in (_COLUMN_HEIGHT, 8):
        width = values.size // height
        if width >= 2 * k:
            maxima = values[: height * width].reshape(height, width).max(axis=0)
            return np.float32(np.partition(maxima, width - k)[width - k])
    return np.float32(np.partition(values, values.size - k)[values.size - k])


def _shortest_prefix(keys: FloatArray, weights: FloatArray, candidates: IndexArray, target: float) -> IndexArray | None:
    """The best of `candidates`, best first, up to a weight of `target`; None if all together stay below it."""
    order = candidates[np.argsort(-keys[candidates], kind="stable")]
    cumulative = np.cumsum(weights[order], dtype=np.float64)
    length = int(np.searchsorted(cumulative, target)) + 1
    if length > order.size:
        return None
    prefix: IndexArray = order[:length]
    return prefix


def _narrow(keys: FloatArray, weights: FloatArray, target: float) -> IndexArray:
    """`first_by_mass` for flat distributions: a histogram finds the few keys around the cut, only those are sorted."""
    kept = np.zeros(keys.size, dtype=np.bool_)
    active = np.flatnonzero(keys > -np.inf)
    while active.size > _SORT_LIMIT:
        own = keys[active]
        span = float(own.max()) - float(own.min())
        if span < _MIN_SPAN:
            break  # all equal: the stable sort below keeps the first
        buckets = ((own.max() - own) * np.float32((_NUM_BUCKETS - 1) / span)).astype(np.intp)
        mass = np.cumsum(np.bincount(buckets, weights[active]))
        crossing = min(int(np.searchsorted(mass, target)), mass.size - 1)
        kept[active[buckets < crossing]] = True
        target -= float(mass[crossing - 1]) if crossing else 0.0
        active = active[buckets == crossing]
    prefix = _shortest_prefix(keys, weights, active, target)
    kept[active if prefix is None else prefix] = True
    return np.flatnonzero(kept)


def _pick(cumulative: DoubleArray, uniform: float) -> int:
    """Index at `uniform` (in [0, 1]) of a cumulative weight; never one whose own weight is zero."""
    total = cumulative[-1]
    index = int(np.searchsorted(cumulative, uniform * total, side="right"))
    if index == cumulative.size or uniform * total >= total:
        index = int(np.searchsorted(cumulative, total))  # rounded up to the end: the last one with a weight
    return index
