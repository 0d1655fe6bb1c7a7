"""Each filter against values computed by hand and against plain definitions on large rows; the draw itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.engine.rolling.sample.temperature_and_top_p import (
    FILTERS,
    DoubleArray,
    Scratch,
    Survivors,
    every_token,
    largest,
    ranked,
    without_top_choices,
)
from dragoman.types import SamplingParams
from tests.support.sampling import chi_square, chi_square_limit, logits_of, probabilities
from tests.support.tiers import examples


def all_tokens(logits: npt.NDArray[np.float32], temperature: float = 1.0) -> Survivors:
    return every_token(logits, logits.max(), temperature, Scratch(logits.size))


def filtered(logits: npt.NDArray[np.float32], **params: Any) -> DoubleArray:
    """The distribution after one filter."""
    (name,) = params
    return probabilities(FILTERS[name].apply(all_tokens(logits), SamplingParams(**params)))


CASES: list[Any] = [
    pytest.param((0.4, 0.1, 0.3, 0.2), {"top_k": 2}, (4 / 7, 0, 3 / 7, 0), id="top-k"),
    pytest.param((0.25, 0.25, 0.25, 0.25), {"top_k": 3}, (1 / 3, 1 / 3, 1 / 3, 0), id="top-k: lowest ids of equals"),
    pytest.param((0.4, 0.1, 0.3, 0.2), {"top_k": 9}, (0.4, 0.1, 0.3, 0.2), id="top-k: more than there are"),
    pytest.param((0.6, 0.0, 0.4, 0.0), {"top_k": 3}, (0.6, 0, 0.4, 0), id="top-k: masked tokens never count"),
    pytest.param(
        (0.1, 0.4, 0.3, 0.2), {"top_p": 0.65}, (0, 4 / 7, 3 / 7, 0), id="top-p: the token that reaches p stays"
    ),
    pytest.param((0.1, 0.4, 0.3, 0.2), {"top_p": 0.75}, (0, 4 / 9, 3 / 9, 2 / 9), id="top-p: one more"),
    pytest.param((0.1, 0.4, 0.3, 0.2), {"top_p": 1e-9}, (0, 1, 0, 0), id="top-p: never empty"),
    pytest.param((0.1, 0.4, 0.3, 0.2), {"top_p": 1 - 1e-12}, (0.1, 0.4, 0.3, 0.2), id="top-p: almost everything"),
    pytest.param((0.25,) * 4, {"top_p": 0.6}, (1 / 3, 1 / 3, 1 / 3, 0), id="top-p: lowest ids of equals"),
    pytest.param((0.5, 0.0, 0.5, 0.0), {"top_p": 0.999}, (0.5, 0, 0.5, 0), id="top-p: masked tokens never count"),
    pytest.param((0.5, 0.28, 0.02, 0.2), {"min_p": 0.5}, (50 / 78, 28 / 78, 0, 0), id="min-p: relative to the largest"),
    pytest.param((0.5, 0.28, 0.02, 0.2), {"min_p": 1.0}, (1, 0, 0, 0), id="min-p: 1 leaves the most likely"),
    # Logits -0.69, -1.20, -2.30, -2.30 (and a masked token): deviation 0.70; the second is 0.73 of it below the first.
    pytest.param((0.5, 0.3, 0.1, 0.1, 0), {"top_n_sigma": 0.8}, (5 / 8, 3 / 8, 0, 0, 0), id="top-n sigma"),
    pytest.param((0.5, 0.3, 0.1, 0.1, 0), {"top_n_sigma": 0.7}, (1, 0, 0, 0, 0), id="top-n sigma: nearer"),
    pytest.param((0.25, 0, 0.75, 0), {"top_n_sigma": 2.5}, (1 / 4, 0, 3 / 4, 0), id="top-n sigma: further"),
    pytest.param((0, 1, 0, 0), {"top_n_sigma": 0.1}, (0, 1, 0, 0), id="top-n sigma: one is left"),
    # Entropy 1.168; distances of -log p from it: 0.475, 0.036, 1.134, 1.134.
    pytest.param((0.5, 0.3, 0.1, 0.1), {"typical_p": 0.2}, (0, 1, 0, 0), id="typical: the most likely may go"),
    pytest.param(
        (0.5, 0.3, 0.1, 0.1), {"typical_p": 0.5}, (5 / 8, 3 / 8, 0, 0), id="typical: nearest to the entropy first"
    ),
    pytest.param(
        (0.5, 0.3, 0.1, 0.1), {"typical_p": 0.85}, (5 / 9, 3 / 9, 1 / 9, 0), id="typical: lowest ids of equals"
    ),
]


@pytest.mark.parametrize(("softmax", "params", "expected"), CASES)
def test_filter_gives_the_values_computed_by_hand(
    softmax: tuple[float, ...], params: dict[str, float], expected: tuple[float, ...]
) -> None:
    assert filtered(logits_of(*softmax)[0], **params) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("softmax", "params", "expected"), CASES)
def test_a_filter_is_needed_only_when_switched_on(
    softmax: tuple[float, ...], params: dict[str, float], expected: tuple[float, ...]
) -> None:
    (name,) = params
    assert FILTERS[name].is_needed(SamplingParams(**params))  # type: ignore[arg-type]
    assert not FILTERS[name].is_needed(SamplingParams())


def test_temperature_scales_the_logits() -> None:
    half = probabilities(all_tokens(logits_of(0.2, 0.8)[0], temperature=0.5))
    assert half == pytest.approx((0.04 / 0.68, 0.64 / 0.68), abs=1e-6)
    double = probabilities(all_tokens(logits_of(0.2, 0.8)[0], temperature=2.0))
    assert double == pytest.approx((1 / 3, 2 / 3), abs=1e-6)


def test_a_vanishing_temperature_is_greedy() -> None:
    with np.errstate(over="ignore"):
        assert probabilities(all_tokens(logits_of(0.2, 0.5, 0.3)[0], temperature=1e-40)).tolist() == [0, 1, 0]


# --- large rows: heads, histograms and ties against the plain definitions ---------------------------------------------

SIZES = (1, 63, 64, 65, 1000, 20_000)


def make_row(kind: str, size: int, seed: int) -> npt.NDArray[np.float32]:
    """A peaked, a flat, an almost constant, a constant or a mostly masked row."""
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 1, size)
    if kind == "peaked":
        row[rng.integers(0, size, 5)] += 12
    elif kind == "ties":
        row = np.round(row)
    elif kind == "constant":
        row[:] = 0.25
    elif kind == "wide":
        row *= 1e4
    elif kind == "masked":
        row[rng.random(size) < 0.9] = -np.inf
        row[size // 2] = 0.0
    return row.astype(np.float32)


rows = st.builds(
    make_row,
    st.sampled_from(["peaked", "flat", "ties", "constant", "wide", "masked"]),
    st.sampled_from(SIZES),
    st.integers(0, 50),
)


def by_rank(keys: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Indices of the keys, largest first, of equals the lowest first, by a full sort."""
    return np.argsort(-keys, kind="stable")


def check_prefix(kept: DoubleArray, order: npt.NDArray[np.intp], probabilities: DoubleArray, share: float) -> None:
    """The kept tokens are the first of `order`, as many as it takes to reach `share`, up to float32 rounding."""
    number = np.count_nonzero(kept)
    assert np.count_nonzero(kept[order[:number]]) == number
    mass = np.cumsum(probabilities[order])
    assert mass[number - 1] >= share - 1e-5
    assert number == 1 or mass[number - 2] < share + 1e-5
    assert kept[order[:number]] == pytest.approx(probabilities[order[:number]] / mass[number - 1], rel=1e-4)


@settings(max_examples=examples(80))
@given(rows, st.integers(1, 8) | st.integers(1, 25_000))
def test_top_k_keeps_exactly_the_k_best(row: npt.NDArray[np.float32], k: int) -> None:
    expected = by_rank(row)[: min(k, int(np.isfinite(row).sum()))]
    assert largest(row, k).tolist() == np.sort(expected).tolist()
    assert ranked(row, k).tolist() == expected.tolist()


@settings(max_examples=examples(70))
@given(rows, st.sampled_from([0.01, 0.5, 0.9, 0.99, 0.9999]))
def test_top_p_keeps_the_smallest_sufficient_set_of_any_row(row: npt.NDArray[np.float32], top_p: float) -> None:
    scores = row - row.max()
    plain = np.exp(scores.astype(np.float64))
    check_prefix(filtered(row, top_p=top_p), by_rank(scores), plain / plain.sum(), top_p)


@settings(max_examples=examples(70))
@given(rows, st.sampled_from([0.01, 0.5, 0.9, 0.99]))
def test_typical_keeps_the_smallest_sufficient_set_of_any_row(row: npt.NDArray[np.float32], typical_p: float) -> None:
    scores = row.astype(np.float64) - float(row.max())
    plain = np.exp(scores)
    probabilities = plain / plain.sum()
    finite = probabilities > 0
    surprise = np.full(row.size, np.inf)
    surprise[finite] = -np.log(probabilities[finite])
    distance = np.abs(surprise - (probabilities[finite] * surprise[finite]).sum())
    kept = filtered(row, typical_p=typical_p)
    number = np.count_nonzero(kept)
    mass = probabilities[kept > 0].sum()
    assert mass >= typical_p - 1e-4
    assert distance[kept > 0].max() <= np.sort(distance[finite])[number - 1] + 1e-3  # none is farther than need be
    farthest = probabilities[kept > 0][np.argmax(distance[kept > 0])]
    assert mass - farthest < typical_p + 1e-3  # and none could be spared


@settings(max_examples=examples(60))
@given(rows, st.sampled_from([1e-6, 0.01, 0.3, 1.0]))
def test_min_p_compares_with_the_most_likely_token_of_any_row(row: npt.NDArray[np.float32], min_p: float) -> None:
    ratio = np.exp(row.astype(np.float64) - float(row.max()))
    kept = filtered(row, min_p=min_p) > 0
    assert kept[ratio > min_p * (1 + 1e-4)].all()
    assert not kept[ratio < min_p * (1 - 1e-4)].any()


@settings(max_examples=examples(60))
@given(rows, st.sampled_from([0.05, 0.5, 1.0, 3.0]), st.sampled_from([0.4, 1.0, 2.5]))
def test_top_n_sigma_keeps_the_same_tokens_of_any_row_at_any_temperature(
    row: npt.NDArray[np.float32], number: float, temperature: float
) -> None:
    finite = row[np.isfinite(row)].astype(np.float64)
    distance = (finite.max() - row.astype(np.float64)) - number * finite.std()
    survivors = FILTERS["top_n_sigma"].apply(all_tokens(row, temperature), SamplingParams(top_n_sigma=number))
    # By what is held, not by what is likely: far below the largest the probability is 0 in any case.
    kept = probabilities(survivors) > 0 if survivors.ids is None else np.isin(np.arange(row.size), survivors.ids)
    assert not kept[distance > 1e-3].any()
    assert kept[(distance < -1e-3) & (row > finite.max() - 50 * temperature)].all()


@pytest.mark.parametrize(
    ("softmax", "threshold", "expected"),
    [
        ((0.4, 0.1, 0.3, 0.2), 0.15, (0, 1 / 3, 0, 2 / 3)),  # the least likely of the likely ones stays
        ((0.4, 0.1, 0.3, 0.2), 0.35, (0.4, 0.1, 0.3, 0.2)),  # one alone is not left out
        ((0.4, 0.1, 0.3, 0.2), 0.6, (0.4, 0.1, 0.3, 0.2)),
        ((0.3, 0.3, 0.3, 0.1), 0.2, (0, 0, 3 / 4, 1 / 4)),  # of equal ones the last
        ((0.5, 0.0, 0.3, 0.2), 0.0, (0, 0, 0, 1)),  # what is masked is none of them
    ],
)
def test_top_choices_are_left_out_but_for_the_least_likely(
    softmax: tuple[float, ...], threshold: float, expected: tuple[float, ...]
) -> None:
    row = logits_of(*softmax)[0]
    nobody, first = np.zeros(0, dtype=np.int64), np.array([0])
    padding = np.full(4000, -np.inf, dtype=np.float32)
    for logits in (row, np.concatenate([row, padding])):  # held as a list, or in the row
        left = probabilities(without_top_choices(all_tokens(logits), threshold, nobody))
        assert left[:4] == pytest.approx(expected, abs=1e-6)
        kept = probabilities(without_top_choices(all_tokens(logits), threshold, first))
        assert kept[:4] == pytest.approx(expected if expected[0] else softmax, abs=1e-6)  # 0 must not go
    picked = FILTERS["top_k"].apply(all_tokens(row), SamplingParams(top_k=4))
    assert probabilities(without_top_choices(picked, threshold, nobody)) == pytest.approx(expected, abs=1e-6)


@settings(max_examples=examples(60))
@given(rows, st.sampled_from([0.0, 0.001, 0.05, 0.3]))
def test_top_choices_of_any_row_are_those_above_the_threshold(row: npt.NDArray[np.float32], threshold: float) -> None:
    before = probabilities(all_tokens(row))
    after = probabilities(without_top_choices(all_tokens(row), threshold, np.zeros(0, dtype=np.int64)))
    gone = np.flatnonzero((before > 0) & (after == 0))
    assert after.sum() == pytest.approx(1.0, abs=1e-9)
    if gone.size:
        stays = before[(after > 0) & (before >= threshold * (1 - 1e-4))]
        assert before[gone].min() >= threshold * (1 - 1e-4)
        assert stays.size
        assert stays.min() <= before[gone].min() * (1 + 1e-6)
    else:
        assert np.count_nonzero(before > threshold * (1 + 1e-4)) <= 1


@settings(max_examples=examples(60))
@given(rows, st.floats(0.3, 3.0), st.integers(0, 300), st.floats(0.05, 1), st.floats(0, 0.5), st.floats(0.1, 1))
def test_any_combination_leaves_a_proper_distribution_without_masked_tokens(
    row: npt.NDArray[np.float32], temperature: float, top_k: int, top_p: float, min_p: float, typical_p: float
) -> None:
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p)
    survivors = all_tokens(row, temperature)
    for one in FILTERS.values():
        if one.is_needed(params):
            survivors = one.apply(survivors, params)
    left = probabilities(survivors)
    assert left.sum() == pytest.approx(1.0, abs=1e-9)
    assert (left >= 0).all()
    assert not left[row == -np.inf].any()
    for uniform in (0.0, 0.5, 1 - 2.0**-53):
        assert left[survivors.draw(uniform)] > 0


def test_the_best_are_found_behind_the_last_whole_column() -> None:
    assert largest(np.arange(1000, dtype=np.float32), 3).tolist() == [997, 998, 999]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("spread", [1.0, 12.0])
def test_almost_everything_of_a_row_leaves_out_what_is_masked(seed: int, spread: float) -> None:
    """With some seeds the sum over the histogram rounds to less than the target."""
    row = make_row("flat", 20_000, seed)
    row[4:] = np.clip(row[4:] * spread, -30, 0)
    row[:4] = 1.0
    row[1::2] = -np.inf
    kept = filtered(row, top_p=1 - 1e-12) > 0
    assert not kept[1::2].any()
    weights = np.exp(row.astype(np.float64))
    assert weights[kept].sum() > (1 - 1e-6) * weights.sum()


@pytest.mark.parametrize("second", [{"min_p": 0.2}, {"typical_p": 0.5}, {"typical_p": 0.01}], ids=str)
@pytest.mark.parametrize("top_p", [0.5, 0.95])
def test_a_filter_after_another_gives_the_same_however_the_survivors_are_held(
    top_p: float, second: dict[str, Any]
) -> None:
    """Many survivors stay in the row with zeros between them, few become a list."""
    row = make_row("flat", 20_000, 2)
    nucleus = FILTERS["top_p"].apply(all_tokens(row), SamplingParams(top_p=top_p))
    assert nucleus.ids is None
    inside = np.flatnonzero(probabilities(nucleus))
    reduced = np.full_like(row, -np.inf)
    reduced[inside] = row[inside]
    expected = filtered(reduced, **second)
    (name,) = second
    assert probabilities(FILTERS[name].apply(nucleus, SamplingParams(**second))) == pytest.approx(expected, abs=1e-7)
    few = FILTERS[name].apply(all_tokens(row).keep(inside), SamplingParams(**second))
    assert probabilities(few) == pytest.approx(expected, abs=1e-7)


# --- the draw ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{}, {"top_k": 5}, {"top_p": 0.95}], ids=["all tokens", "few", "most"])
def test_drawing_at_even_steps_reproduces_the_distribution(params: dict[str, Any]) -> None:
    row = np.random.default_rng(3).normal(0, 1.5, 150).astype(np.float32)
    survivors = all_tokens(row)
    for name in params:
        survivors = FILTERS[name].apply(survivors, SamplingParams(**params))
    steps = (np.arange(20_000) + 0.5) / 20_000
    counts = np.bincount([survivors.draw(step) for step in steps.tolist()], minlength=150)
    assert np.abs(counts / 20_000 - probabilities(survivors)).max() <= 1e-4  # inverse CDF: one step at either end
    assert chi_square(counts, probabilities(survivors)) < chi_square_limit(150)


@pytest.mark.parametrize("seed", range(20))
def test_numbers_next_to_a_border_draw_possible_tokens_only(seed: int) -> None:
    """The borders between the columns of the row, where rounding might step over the last possible token."""
    row = np.random.default_rng(seed).normal(0, 3, 640).astype(np.float32)
    row[:20], row[320:] = -np.inf, -np.inf
    survivors = all_tokens(row)
    possible = probabilities(survivors) > 0
    columns = np.cumsum(survivors.weights.reshape(64, -1).sum(axis=0), dtype=np.float64)
    borders = columns / columns[-1]
    for border in [*borders.tolist(), *np.nextafter(borders, 0).tolist(), *np.nextafter(borders, 1).tolist(), 0.0]:
        assert possible[survivors.draw(min(border, 1 - 2.0**-53))]
