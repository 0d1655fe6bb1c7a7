"""The sampler as a whole: order of the steps, greedy and drawn tokens, log-probabilities, nothing left to choose."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dragoman.engine.rolling.sample.sampler import Sampled, Sampler
from dragoman.types import Logprob
from tests.support.maskers import ByForks
from tests.support.sampling import (
    FloatArray,
    chi_square,
    chi_square_limit,
    distribution,
    logits_of,
    make_request,
    make_state,
    row_of,
)


class Allows(ByForks):
    """A TokenMasker that always allows the same tokens."""

    def __init__(self, *token_ids: int) -> None:
        self.token_ids = token_ids

    def fork(self) -> Allows:
        return self

    def fill_mask(self, bitmask_row: Any) -> None:
        bitmask_row[:] = 0
        for token_id in self.token_ids:
            bitmask_row[token_id // 32] |= 1 << (token_id % 32)

    def advance(self, token_id: int) -> bool:
        return token_id in self.token_ids

    def validate(self, token_ids: Any) -> int:
        return next((n for n, token_id in enumerate(token_ids) if token_id not in self.token_ids), len(token_ids))

    @property
    def is_finished(self) -> bool:
        return not self.token_ids


def sample_one(logits: FloatArray, generated: tuple[int, ...] = (), **request: Any) -> Sampled:
    sampler = Sampler(logits.shape[1])
    return sampler.sample(logits, [make_state(sampler, generated, **request)])


def distribution_of(logits: FloatArray, generated: tuple[int, ...] = (), **request: Any) -> list[float]:
    sampler = Sampler(logits.shape[1])
    return [float(value) for value in distribution(sampler, logits[0], make_state(sampler, generated, **request))]


# --- the documented order, pair by pair -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # Token 1 has logit 2 and was generated once; token 2 has logit 0. Swapped, the difference would be another one.
        ({"repetition_penalty": 2.0}, {"frequency_penalty": 0.5}, 2 / 2 - 0.5),
        ({"repetition_penalty": 2.0}, {"presence_penalty": 0.5}, 2 / 2 - 0.5),
        ({"repetition_penalty": 2.0}, {"logit_bias": {1: 3.0}}, 2 / 2 + 3.0),
        ({"frequency_penalty": 1.5}, {"presence_penalty": 1.0}, 2 - 1.5 - 1.0),
        ({"logit_bias": {1: 3.0}}, {"temperature": 0.5}, (2 + 3.0) / 0.5),
    ],
)
def test_scores_change_in_the_documented_order(first: dict[str, Any], second: dict[str, Any], expected: float) -> None:
    request = {"temperature": 1.0, **first, **second}
    probabilities = distribution_of(row_of(-9.0, 2.0, 0.0), (1,), prompt_ids=(), **request)
    assert math.log(probabilities[1] / probabilities[2]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "ban",
    [
        {"allowed_token_ids": (0, 2)},
        {"bad_word_ids": ((1,),)},
        {"min_tokens": 5, "eos_token_ids": frozenset({1})},
        {"masker": Allows(0, 2)},
    ],
    ids=["allowed tokens", "bad words", "minimum length", "grammar"],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_bias_lifts_a_ban(ban: dict[str, Any], temperature: float) -> None:
    probabilities = distribution_of(row_of(1.0, 5.0, 2.0), logit_bias={1: 100.0}, temperature=temperature, **ban)
    assert probabilities[1] == 0.0


@pytest.mark.parametrize(
    ("probabilities", "params", "expected"),
    [
        # temperature before top-p: 0.5 sharpens 0.5/0.3/0.2 to 0.66/0.24/0.11, so one token reaches 0.6
        ((0.5, 0.3, 0.2), {"temperature": 0.5, "top_p": 0.6}, (1, 0, 0)),
        # top-k before top-p: of 0.4/0.3 alone the first has 0.57
        ((0.4, 0.3, 0.2, 0.1), {"top_k": 2, "top_p": 0.5}, (1, 0, 0, 0)),
        # top-p before min-p: of 0.5/0.3 alone the first would have 0.63 and reach 0.6
        ((0.5, 0.3, 0.1, 0.1), {"top_p": 0.6, "min_p": 0.5}, (5 / 8, 3 / 8, 0, 0)),
        # min-p before typical: of 0.5/0.3 alone the first is nearer to the entropy, of all four the second is
        ((0.5, 0.3, 0.1, 0.1), {"min_p": 0.5, "typical_p": 0.5}, (1, 0, 0, 0)),
        # temperature before min-p: 2 flattens 0.6/0.2/0.2 to ratios of 0.58
        ((0.6, 0.2, 0.2), {"temperature": 2.0, "min_p": 0.5}, (0.464, 0.268, 0.268)),
    ],
)
def test_filters_narrow_in_the_documented_order(
    probabilities: tuple[float, ...], params: dict[str, Any], expected: tuple[float, ...]
) -> None:
    assert distribution_of(logits_of(*probabilities), **{"temperature": 1.0, **params}) == pytest.approx(
        expected, abs=1e-3
    )


def test_filters_see_what_the_masks_left() -> None:
    left = distribution_of(logits_of(0.7, 0.15, 0.1, 0.05), temperature=1.0, top_p=0.5, bad_word_ids=((0,),))
    assert left == pytest.approx((0, 1, 0, 0))  # half of the remaining 0.3 is reached by 0.15


# --- greedy and drawn tokens ------------------------------------------------------------------------------------------


def test_greedy_takes_the_most_likely_token_and_the_lowest_id_of_equals() -> None:
    assert sample_one(row_of(1.0, 3.0, 2.0, 3.0)).token_ids.tolist() == [1]
    assert distribution_of(row_of(1.0, 3.0, 2.0, 3.0)) == [0, 1, 0, 0]


def test_greedy_ignores_the_filters() -> None:
    assert sample_one(logits_of(0.5, 0.3, 0.2), typical_p=0.2, top_k=2, min_p=0.9, top_p=0.1).token_ids.tolist() == [0]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.7, "top_k": 7},
        {"top_p": 0.8},
        {"min_p": 0.2},
        {"typical_p": 0.6},
        {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.95},
        {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.2, "logit_bias": {4: 1.0}},
        {"bad_word_ids": ((3,), (5, 6)), "min_tokens": 5, "allowed_token_ids": tuple(range(30))},
    ],
    ids=str,
)
def test_drawn_tokens_follow_the_distribution(params: dict[str, Any]) -> None:
    num_tokens, num_draws = 40, 4000
    sampler = Sampler(num_tokens)
    logits = np.random.default_rng(5).normal(0, 1.5, num_tokens).astype(np.float32)
    first = make_state(sampler, (4, 5), **{"temperature": 1.0, **params})
    states = [first.fork(index) for index in range(num_draws)]
    token_ids = sampler.sample(np.repeat(logits[None], num_draws, axis=0), states).token_ids
    exact = distribution(sampler, logits, first)
    counts = np.bincount(token_ids, minlength=num_tokens)
    assert exact.sum() == pytest.approx(1.0, abs=1e-12)
    assert counts[exact == 0].sum() == 0
    assert chi_square(counts, exact) < chi_square_limit(int((exact > 0).sum()))


def test_draws_of_successive_positions_are_independent() -> None:
    sampler = Sampler(4)
    state = make_state(sampler, temperature=1.0)
    tokens = []
    for _ in range(3000):
        tokens.append(int(sampler.sample(np.zeros((1, 4), dtype=np.float32), [state]).token_ids[0]))
        state.observe(tokens[-1])
    pairs = np.bincount(np.array(tokens[:-1]) * 4 + np.array(tokens[1:]), minlength=16)
    assert chi_square(pairs, np.full(16, 1 / 16)) < chi_square_limit(16)


def test_sequences_of_one_request_draw_different_tokens_and_seeds_matter() -> None:
    sampler = Sampler(1000)

    def drawn(seed: int, index: int) -> int:
        state = sampler.new_state(make_request(temperature=1.0, seed=seed), index)
        return int(sampler.sample(np.zeros((1, 1000), dtype=np.float32), [state]).token_ids[0])

    assert len({drawn(seed, index) for seed in range(5) for index in range(5)}) >= 23
    assert drawn(3, 2) == drawn(3, 2)


# --- log-probabilities ------------------------------------------------------------------------------------------------


def test_log_probabilities_are_raw() -> None:
    sampled = sample_one(
        logits_of(0.5, 0.3, 0.2), logprobs=3, temperature=0.1, top_k=1, logit_bias={2: 50.0}, repetition_penalty=1.9
    )
    assert sampled.token_ids.tolist() == [2]
    assert sampled.logprobs[0] == pytest.approx(math.log(0.2), abs=1e-6)
    top = sampled.top_logprobs[0]
    assert top is not None
    assert [entry.token_id for entry in top] == [0, 1, 2]
    assert [entry.logprob for entry in top] == pytest.approx([math.log(p) for p in (0.5, 0.3, 0.2)], abs=1e-6)
    assert top[2].logprob == sampled.logprobs[0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_chosen_token_has_the_same_bits_as_its_entry_in_the_list(temperature: float) -> None:
    vocab_size = 3001
    sampler = Sampler(vocab_size)
    logits = np.random.default_rng(1).normal(0, 2, (20, vocab_size)).astype(np.float32)
    request: dict[str, Any] = {"temperature": temperature, "logprobs": vocab_size, "logit_bias": {7: 3.0}}
    sampled = sampler.sample(logits, [make_state(sampler, seed=seed, **request) for seed in range(20)])
    for token_id, logprob, top in zip(sampled.token_ids, sampled.logprobs, sampled.top_logprobs, strict=True):
        assert top is not None
        assert [entry.logprob for entry in top if entry.token_id == token_id] == [logprob]
        assert sum(math.exp(entry.logprob) for entry in top) == pytest.approx(1.0, abs=1e-5)


def test_equally_likely_tokens_are_listed_lowest_id_first() -> None:
    top = sample_one(row_of(0.0, 1.0, 0.0, 1.0, 1.0), logprobs=4).top_logprobs[0]
    assert top is not None
    assert [entry.token_id for entry in top] == [1, 3, 4, 0]


@pytest.mark.parametrize("num_tokens", [1, 5, 40, 700, 5000, 9000])
def test_any_number_of_top_tokens_is_exact(num_tokens: int) -> None:
    logits = np.random.default_rng(2).normal(0, 2, (1, 5000)).astype(np.float32)
    order = np.argsort(-logits[0], kind="stable")
    top = sample_one(logits, logprobs=num_tokens).top_logprobs[0]
    assert top is not None
    assert [entry.token_id for entry in top] == order[:num_tokens].tolist()
    assert [entry.logprob for entry in top] == sorted((entry.logprob for entry in top), reverse=True)


def test_only_rows_that_ask_get_log_probabilities() -> None:
    sampler = Sampler(3)
    states = [make_state(sampler, logprobs=n) for n in (None, 0, 2)]
    sampled = sampler.sample(np.repeat(logits_of(0.5, 0.3, 0.2), 3, axis=0), states)
    assert [value is None for value in sampled.logprobs] == [True, False, False]
    assert [top if top is None else len(top) for top in sampled.top_logprobs] == [None, 0, 2]


def test_prompt_log_probabilities_leave_the_logits_alone() -> None:
    logits = np.concatenate([logits_of(0.5, 0.3, 0.2), logits_of(0.1, 0.2, 0.7)])
    before = logits.copy()
    first, second = Sampler(3).prompt_logprobs(logits, [1, 2], 2)
    assert (logits == before).all()
    assert first.logprob == pytest.approx(math.log(0.3), abs=1e-6)
    assert [entry.token_id for entry in first.top] == [0, 1]
    assert first.top[1].logprob == first.logprob
    assert second.logprob == pytest.approx(math.log(0.7), abs=1e-6)
    assert [entry.token_id for entry in second.top] == [2, 1]
    assert (first.rank, second.rank) == (2, 1)
    (last,) = Sampler(3).prompt_logprobs(logits[:1], [2], 1)
    assert last.rank == 3


def test_prompt_and_generated_log_probabilities_agree_bit_for_bit() -> None:
    logits = np.random.default_rng(4).normal(0, 2, (1, 1234)).astype(np.float32)
    (prompt,) = Sampler(1234).prompt_logprobs(logits, [int(logits.argmax())], 3)
    sampled = sample_one(logits, logprobs=3)
    assert sampled.logprobs == [prompt.logprob]
    assert sampled.top_logprobs == [list(prompt.top)]


def test_impossible_tokens_have_a_number_that_json_can_carry() -> None:
    (prompt,) = Sampler(3).prompt_logprobs(row_of(1.0, -np.inf, 2.0), [1], 3)
    assert prompt.logprob == -9999.0
    assert [entry.token_id for entry in prompt.top] == [2, 0]


# --- beam search and speculation --------------------------------------------------------------------------------------


def test_processed_log_probabilities_are_normalised_after_the_processors() -> None:
    sampler = Sampler(4)
    states = [make_state(sampler, num_beams=2, bad_word_ids=((1,),), logit_bias={2: math.log(2)}), make_state(sampler)]
    logits = np.repeat(logits_of(0.4, 0.3, 0.2, 0.1), 2, axis=0)
    processed = sampler.process(logits, states)
    assert np.exp(processed[0]) == pytest.approx((4 / 9, 0, 4 / 9, 1 / 9), abs=1e-6)
    assert processed[0, 1] == -np.inf
    assert np.exp(processed[1]) == pytest.approx((0.4, 0.3, 0.2, 0.1), abs=1e-6)


def test_the_distribution_leaves_the_logits_alone() -> None:
    logits = logits_of(0.4, 0.3, 0.2, 0.1)
    before = logits.copy()
    distribution_of(logits, temperature=1.0, bad_word_ids=((0,),), top_k=2)
    assert (logits == before).all()


# --- nothing left, and broken logits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"masker": Allows()}, {0}),
        ({"masker": Allows(0), "min_tokens": 4}, {0}),
        ({"allowed_token_ids": (1,), "bad_word_ids": ((1,),)}, {0}),
        ({"masker": Allows(), "stop_token_ids": (2,)}, {0}),
        ({"masker": Allows(), "stop_token_ids": (2,), "eos_token_ids": frozenset()}, {2}),
    ],
    ids=["finished grammar", "grammar at its end before the minimum", "all forbidden", "end before stop", "stop"],
)
def test_a_sequence_with_nothing_left_may_only_end(
    request_: dict[str, Any], expected: set[int], temperature: float
) -> None:
    probabilities = distribution_of(row_of(0.0, 5.0, 1.0), temperature=temperature, **request_)
    assert {token_id for token_id, probability in enumerate(probabilities) if probability} == expected
    assert set(sample_one(row_of(0.0, 5.0, 1.0), temperature=temperature, **request_).token_ids.tolist()) == expected


def test_a_request_that_cannot_end_goes_on_with_the_untouched_logits() -> None:
    request: dict[str, Any] = {"masker": Allows(), "eos_token_ids": frozenset(), "logit_bias": {2: 9.0}}
    assert sample_one(row_of(0.0, 5.0, 1.0), **request).token_ids.tolist() == [1]
    assert distribution_of(row_of(0.0, 5.0, 1.0), **request) == [0, 1, 0]


def test_a_row_with_nothing_left_keeps_its_raw_log_probabilities() -> None:
    sampled = sample_one(logits_of(0.2, 0.5, 0.3), masker=Allows(), logprobs=1)
    assert sampled.token_ids.tolist() == [0]
    assert sampled.logprobs[0] == pytest.approx(math.log(0.2), abs=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_numbers_that_are_none_are_never_chosen(temperature: float) -> None:
    sampled = sample_one(row_of(np.nan, 1.0, -np.inf, np.nan), temperature=temperature, logprobs=4)
    assert sampled.token_ids.tolist() == [1]
    assert sampled.logprobs == [0.0]
    assert [entry.token_id for entry in sampled.top_logprobs[0] or ()] == [1]


def test_an_infinite_logit_wins() -> None:
    assert sample_one(row_of(1.0, np.inf, 2.0), temperature=1.0, logprobs=0).token_ids.tolist() == [1]


def test_an_empty_batch_is_empty() -> None:
    sampled = Sampler(5).sample(np.zeros((0, 5), dtype=np.float32), [])
    assert (sampled.token_ids.size, sampled.logprobs, sampled.top_logprobs) == (0, [], [])


def test_log_probabilities_can_be_those_that_the_token_was_drawn_with() -> None:
    """After temperature, penalties, bias, filters and grammar; tokens that could not be drawn are not told."""
    shapes: list[dict[str, Any]] = [
        {},
        {"top_k": 3},
        {"top_p": 0.6, "min_p": 0.1},
        {"logit_bias": {2: 5.0}, "frequency_penalty": 0.5},
        {"masker": Allows(3, 4), "repetition_penalty": 1.5},
        {"xtc_probability": 1.0, "top_n_sigma": 2.0},
    ]
    for shape in shapes:
        logits = logits_of(0.3, 0.25, 0.2, 0.15, 0.1)
        expected = distribution_of(logits.copy(), (1, 2), temperature=1.3, **shape)
        sampled = sample_one(logits, (1, 2), temperature=1.3, logprobs=5, post_sampling_probs=True, **shape)
        [token_id], [logprob], [top] = sampled.token_ids, sampled.logprobs, sampled.top_logprobs
        assert logprob is not None
        assert top is not None
        assert math.exp(logprob) == pytest.approx(expected[token_id], abs=1e-6)
        found = {one.token_id: math.exp(one.logprob) for one in top}
        assert found == pytest.approx({i: value for i, value in enumerate(expected) if value > 0.0}, abs=1e-6)
        assert list(found.values()) == sorted(found.values(), reverse=True)


def test_a_token_that_is_not_drawn_has_the_whole_probability() -> None:
    shapes: list[dict[str, Any]] = [{}, {"temperature": 1.0, "top_k": 1}]
    for shape in shapes:
        sampled = sample_one(logits_of(0.2, 0.5, 0.3), logprobs=2, post_sampling_probs=True, **shape)
        assert sampled.logprobs == [0.0]
        assert sampled.top_logprobs == [[Logprob(1, 0.0)]]


def test_a_gap_is_filled_with_what_is_likely_or_ends() -> None:
    """Token 0 ends. A share of a fifth is likely; the end counts for more than its share."""
    cases: list[tuple[tuple[float, ...], dict[str, Any], list[float]]] = [
        ((0.0, 0.5, 0.3, 0.2), {}, [0.0, 0.625, 0.375, 0.0]),  # of the three, the last has less than a quarter
        ((0.0, 0.7, 0.22, 0.08), {}, [0.0, 1.0, 0.0, 0.0]),  # with one fewer it takes a third
        ((0.2, 0.5, 0.2, 0.1), {}, [1.0, 0.0, 0.0, 0.0]),  # the end is likely
        ((0.01, 0.8, 0.1, 0.09), {}, [0.01 / 0.81, 0.8 / 0.81, 0.0, 0.0]),  # it may always be drawn
        ((0.0001, 0.19, 0.19, *[0.1] * 6), {}, [1.0, *[0.0] * 8]),  # nothing is likely
        ((0.0001, 0.19, 0.18, *[0.1] * 6), {"top_k": 3}, [0.0, 0.19 / 0.37, 0.18 / 0.37, *[0.0] * 6]),
        ((0.0001, 0.19, 0.18, *[0.1] * 6), {"min_tokens": 9}, [0.0, 1.0, *[0.0] * 7]),  # it may not end yet
        ((0.0, *[0.125] * 8), {"eos_token_ids": frozenset[int]()}, [0.0, 1.0, *[0.0] * 7]),  # nothing ends
    ]
    for chances, request, expected in cases:
        found = distribution_of(logits_of(*chances), temperature=1.0, infill=True, **request)
        assert found == pytest.approx(expected, abs=1e-5), (chances, request)
