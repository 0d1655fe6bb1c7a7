"""Filters that narrow one row's distribution before the draw, such as top-k and top-p; and the draw itself.

Exact, by thresholds and partial sorts, never sorting a vocabulary. Called by the sampler on the engine thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dragoman.types import SamplingParams

FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]
BoolArray = npt.NDArray[np.bool_]

_COLUMN_HEIGHT = 64  # a row of logits is also seen as a [64, n] table, whose columns are summed and maximised at once
_HEAD_SIZES = (64, 1024)  # the number of best tokens to examine first; usually enough for a trained model
_SPARSE_SHARE = 8  # a set is a list of ids if it is at most 1/8 of the vocabulary, else zeros in the row
_SORT_LIMIT = 4096  # sets up to this size are sorted, larger ones first reduced by a histogram
_NUM_BUCKETS = 4096
_FIRST_SPAN = 20.0  # nats covered by the first histogram; the last bucket holds everything below
_MIN_SPAN = 1e-30  # keys closer than this count as equal; dividing by the span stays within float32
_MIN_TEMPERATURE = 1e-6  # below it float32 quotients overflow; the result is already greedy
_GAP_SHARE = 0.2
_NO_SCORE = -200.0  # exp(-200) is 0 in float32: stands for -inf where -inf * 0 would be NaN
_POSITIVE_INF_BITS = np.uint32(0x7F800000)  # IEEE 754 single precision; with the sign bit set it is -inf


class Scratch:
    """Reusable row buffers, padded to whole columns; fresh arrays of this size take longer to get than to fill."""

    def __init__(self, vocab_size: int) -> None:
        width = -(-vocab_size // _COLUMN_HEIGHT) * _COLUMN_HEIGHT
        self.vocab_size = vocab_size
        self.scores: FloatArray = np.full(width, -np.inf, dtype=np.float32)
        self.weights: FloatArray = np.zeros(width, dtype=np.float32)
        self.keys: FloatArray = np.zeros(width, dtype=np.float32)
        self.products: FloatArray = np.zeros(width, dtype=np.float32)
        self.buckets: IndexArray = np.zeros(width, dtype=np.intp)


class Survivors:
    """The remaining candidates, in ascending id order.

    `scores` are logits minus the largest one, divided by the temperature; `weights` = exp(scores). `ids` None = the
    whole row, in the scratch buffers and padded (valid until the next row): dropped tokens have weight 0. Both arrays
    are computed when first needed, so that top-k never scores a whole vocabulary.
    """

    __slots__ = ("_maximum", "_scores", "_temperature", "_weights", "ids", "logits", "scratch")

    def __init__(self, logits: FloatArray, maximum: np.float32, temperature: np.float32, scratch: Scratch) -> None:
        self.ids: IndexArray | None = None
        self.logits = logits  # of `ids`
        self._maximum = maximum
        self._temperature = temperature
        self.scratch = scratch
        self._scores: FloatArray | None = None
        self._weights: FloatArray | None = None

    @property
    def scores(self) -> FloatArray:
        if self._scores is None:
            scratch = self.scratch.scores[: self.logits.size] if self.ids is None else None
            scores = np.subtract(self.logits, self._maximum, out=scratch)
            if self._temperature != 1.0:
                np.divide(scores, self._temperature, out=scores)
            self._scores = scores if self.ids is not None else self.scratch.scores
        return self._scores

    @property
    def weights(self) -> FloatArray:
        if self._weights is None:
            self._weights = np.exp(self.scores, out=self.scratch.weights if self.ids is None else None)
        return self._weights

    @property
    def total(self) -> float:
        return float(np.add.reduce(self.weights))

    def keep(self, indices: IndexArray) -> Survivors:
        kept = Survivors(self.logits[indices], self._maximum, self._temperature, self.scratch)
        kept.ids = indices if self.ids is None else self.ids[indices]
        kept._scores = None if self._scores is None else self._scores[indices]
        kept._weights = None if self._weights is None else self._weights[indices]
        return kept

    def keep_mask(self, mask: BoolArray) -> Survivors:
        """Only the survivors where `mask` is true. Mutates: the scratch buffers if they are many."""
        if self.ids is not None or int(np.count_nonzero(mask)) * _SPARSE_SHARE <= mask.size:
            return self.keep(np.flatnonzero(mask))
        np.multiply(self.weights, mask, out=self.scratch.weights)
        return self

    def draw(self, uniform: float) -> int:
        """The token at `uniform` (in [0, 1)) of the cumulative distribution."""
        if self.ids is not None:
            return int(self.ids[_pick(np.cumsum(self.weights, dtype=np.float64), uniform)])
        # The whole row: choose a column by its sum, then a token inside the column.
        table = self.weights.reshape(_COLUMN_HEIGHT, -1)
        cumulative = np.cumsum(table.sum(axis=0), dtype=np.float64)
        column = _pick(cumulative, uniform)
        before = float(cumulative[column - 1]) if column else 0.0
        # In [0, 1): the three numbers are ordered, and rounded differences never make unequal ones equal.
        share = (uniform * float(cumulative[-1]) - before) / (float(cumulative[column]) - before)
        line = _pick(np.cumsum(table[:, column], dtype=np.float64), share)
        return line * table.shape[1] + column


class LogitsFilter(NamedTuple):
    """One narrowing of the distribution; it keeps at least one token."""

    is_needed: Callable[[SamplingParams], bool]
    apply: Callable[[Survivors, SamplingParams], Survivors]


def every_token(logits: FloatArray, maximum: np.float32, temperature: float, scratch: Scratch) -> Survivors:
    """Every token, scored. Shapes: logits [V], finite or -inf; `maximum` is the largest of them."""
    return Survivors(logits, maximum, np.float32(max(temperature, _MIN_TEMPERATURE)), scratch)


def _top_n_sigma(survivors: Survivors, params: SamplingParams) -> Survivors:
    """Keeps the tokens whose logits are at most n standard deviations below the largest; masked tokens do not count.

    The temperature scales both, so it does not matter. Source: arXiv:2411.07641, section 3.
    """
    scores = survivors.scores
    known = scores[: survivors.logits.size]  # without the padding
    total = np.add.reduce(known)
    if not np.isfinite(total):
        known = known[known > -np.inf]
        total = np.add.reduce(known)
    distances = np.subtract(known, total / known.size, out=survivors.scratch.products[: known.size])
    np.multiply(distances, distances, out=distances)
    spread = math.sqrt(float(np.add.reduce(distances)) / known.size)
    return survivors.keep_mask(scores >= np.float32(-params.top_n_sigma * spread))


def _top_k(survivors: Survivors, params: SamplingParams) -> Survivors:
    """Keeps the k most likely tokens; of equally likely ones those with the lowest ids."""
    # On the logits: the scores have the same order, but need a pass over the vocabulary.
    return survivors.keep(largest(survivors.logits, params.top_k))


def _top_p(survivors: Survivors, params: SamplingParams) -> Survivors:
    """Source: nucleus sampling, arXiv:1904.09751, section 3.1."""
    return keep_by_mass(survivors, survivors.scores, params.top_p)


def _min_p(survivors: Survivors, params: SamplingParams) -> Survivors:
    """Source: arXiv:2407.01082, section 3."""
    return survivors.keep_mask(survivors.scores >= np.float32(math.log(params.min_p)))


def _typical_p(survivors: Survivors, params: SamplingParams) -> Survivors:
    """Keeps the set nearest to the distribution's entropy. Source: arXiv:2202.00666, section 4."""
    scores, scratch = survivors.scores, survivors.scratch
    # Information content is log(total) - score and the entropy is its mean, so log(total) drops out of the difference.
    products = np.maximum(scores, np.float32(_NO_SCORE), out=scratch.products[: scores.size])
    np.multiply(products, survivors.weights, out=products)
    mean_score = np.float32(float(np.add.reduce(products)) / survivors.total)
    closeness = np.subtract(scores, mean_score, out=scratch.keys[: scores.size])
    np.negative(np.abs(closeness, out=closeness), out=closeness)
    return keep_by_mass(survivors, closeness, params.typical_p)


FILTERS: Mapping[str, LogitsFilter] = {
    "top_n_sigma": LogitsFilter(lambda params: params.top_n_sigma > 0.0, _top_n_sigma),
    "top_k": LogitsFilter(lambda params: params.top_k > 0, _top_k),
    "top_p": LogitsFilter(lambda params: params.top_p < 1.0, _top_p),
    "min_p": LogitsFilter(lambda params: params.min_p > 0.0, _min_p),
    "typical_p": LogitsFilter(lambda params: params.typical_p < 1.0, _typical_p),
}
"""The filters in the order they are applied, after the temperature."""


def without_top_choices(survivors: Survivors, threshold: float, kept_ids: IndexArray) -> Survivors:
    """XTC: drops the tokens whose probability reaches the threshold, except the least likely of them.

    Does nothing if one of `kept_ids` would be dropped, as answers could not end. Source: text-generation-webui's pull
    request 6335.
    """
    weights = survivors.weights
    top = np.flatnonzero((weights >= np.float32(threshold * survivors.total)) & (weights > 0))
    if top.size < 2:
        return survivors
    stays = top[top.size - 1 - int(np.argmin(weights[top][::-1]))]
    gone = top[top != stays]
    if np.isin(gone if survivors.ids is None else survivors.ids[gone], kept_ids).any():
        return survivors
    mask: BoolArray = weights > 0
    mask[gone] = False
    return survivors.keep_mask(mask)


def for_a_gap(survivors: Survivors, ending_ids: IndexArray) -> Survivors | None:
    """The candidates to fill a gap in code: only the end if it is likely, else clearly likely tokens; None = neither.

    Source: llama.cpp's sampler `infill`, but without merging tokens of which one begins another.
    """
    weights, ids = survivors.weights, survivors.ids
    is_known: BoolArray = weights > 0
    is_end: BoolArray = np.isin(np.arange(weights.size) if ids is None else ids, ending_ids) & is_known
    total, ends = survivors.total, float(np.add.reduce(weights[is_end]))
    if 3.0 * ends * np.count_nonzero(is_known) > total - ends:
        return survivors.keep(np.flatnonzero(is_end))
    is_likely: BoolArray = (weights >= np.float32(_GAP_SHARE * total)) & ~is_end
    count = int(np.count_nonzero(is_likely))
    if not count:
        return None
    kept: BoolArray = is_likely | is_end
    least = float(np.add.reduce(weights[kept])) / (count + 1)
    return survivors.keep(np.flatnonzero(kept & (is_end | (weights >= np.float32(least)))))


# --- exact selection without sorting everything -----------------------------------------------------------------------


def keep_only(row: FloatArray, bits: npt.NDArray[np.uint8]) -> None:
    """Set every element to -inf whose bit is 0. Shapes: row [n], bits [n]. Without branches: much faster than a mask."""
    caps = (bits ^ np.uint8(1)).astype(np.uint32) << np.uint32(31)
    caps |= _POSITIVE_INF_BITS
    np.minimum(row, caps.view(np.float32), out=row)


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
    return np.compress(chosen, candidates)


def ranked(values: FloatArray, k: int) -> IndexArray:
    """Indices of the k largest values, best first; of equal ones the first."""
    return _best_first(values, largest(values, k))


def keep_by_mass(survivors: Survivors, keys: FloatArray, share: float) -> Survivors:
    """The smallest set of survivors with the largest keys that has `share` of the weight; of equal keys the first ids.

    Keys of -inf are never kept. If rounding keeps the sum of the others below `share`, all of these are kept.
    """
    weights = survivors.weights
    target = share * survivors.total
    for size in _HEAD_SIZES:
        is_all = keys.size < 4 * size  # too few to select from
        order = _best_first(keys, _reaching(keys, keys.size if is_all else size))
        cumulative = np.cumsum(weights[order], dtype=np.float64)
        length = int(np.searchsorted(cumulative, target)) + 1
        if is_all or length <= order.size:
            return survivors.keep(np.sort(order[:length]))
        if cumulative[-1] < target / 2:
            break  # a flat distribution: a larger head would not suffice either
    return survivors.keep_mask(_mask_by_mass(keys, weights, target, survivors.scratch))


def _best_first(values: FloatArray, indices: IndexArray) -> IndexArray:
    order: IndexArray = np.take(indices, np.argsort(-values[indices], kind="stable"))
    return order


def _reaching(values: FloatArray, k: int) -> IndexArray:
    """Indices (ascending) of a small set that contains the k largest values, without those of -inf.

    The k-th largest of the maxima of disjoint columns is a bound that at least k values reach, and few others.
    """
    width = values.size // _COLUMN_HEIGHT
    if k >= values.size or width < 2 * k:
        bound = np.partition(values, values.size - k)[values.size - k] if k < values.size else -np.inf
        return np.flatnonzero(values >= bound if bound > -np.inf else values > -np.inf)
    table = values[: _COLUMN_HEIGHT * width].reshape(_COLUMN_HEIGHT, width)
    maxima = table.max(axis=0)
    bound = np.partition(maxima, width - k)[width - k]
    if bound == -np.inf:
        return np.flatnonzero(values > bound)
    columns = np.flatnonzero(maxima >= bound)
    hits = np.flatnonzero(table.take(columns, axis=1) >= bound)  # row-major, so the resulting indices ascend
    indices = hits // columns.size * width + columns[hits % columns.size]
    rest = np.flatnonzero(values[table.size :] >= bound)
    return np.concatenate([indices, rest + table.size]) if rest.size else indices


def _mask_by_mass(keys: FloatArray, weights: FloatArray, target: float, scratch: Scratch) -> BoolArray:
    """`keep_by_mass` for flat distributions: histograms find the few keys around the cut, only those are sorted."""
    active: IndexArray = np.arange(0)
    span = _FIRST_SPAN
    buckets, mass = _histogram(keys, weights, span, scratch)
    while True:
        crossing = int(
            np.searchsorted(mass, min(target, float(mass[-1])))
        )  # rounding may keep the sum below the target
        target -= float(mass[crossing - 1]) if crossing else 0.0
        inside = np.flatnonzero(buckets == crossing)
        active = active[inside] if active.size else inside
        active = active[keys[active] > -np.inf]
        active_keys = keys[active]
        span = float(active_keys.max()) - float(active_keys.min())
        if active.size <= _SORT_LIMIT or span < _MIN_SPAN:
            break  # few or all equal: the stable sort below keeps the first
        buckets, mass = _histogram(active_keys, weights[active], span, scratch)
    order = _best_first(keys, active)
    order = order[: int(np.searchsorted(np.cumsum(weights[order], dtype=np.float64), target)) + 1]
    cut = keys[order[-1]]
    mask: BoolArray = keys > cut
    mask[order[keys[order] == cut]] = True
    return mask


def _histogram(keys: FloatArray, weights: FloatArray, span: float, scratch: Scratch) -> tuple[IndexArray, DoubleArray]:
    """Every key's bucket, counted down from the largest key, and the cumulative weight of the buckets."""
    distances = np.subtract(keys.max(), keys, out=scratch.products[: keys.size])
    np.multiply(distances, np.float32(_NUM_BUCKETS / span), out=distances)
    buckets = scratch.buckets[: keys.size]
    np.copyto(buckets, np.minimum(distances, np.float32(_NUM_BUCKETS - 1), out=distances), casting="unsafe")
    return buckets, np.cumsum(np.bincount(buckets, weights))


def _pick(cumulative: DoubleArray, uniform: float) -> int:
    """Index at `uniform`, at most 1 - 2**-53, of a cumulative weight; never one whose own weight is zero."""
    return int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
