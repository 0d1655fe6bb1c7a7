"""What must hold for any batch: rows never influence each other, and no constraint is ever violated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.engine.rolling.sample.sampler import Sampled, Sampler
from dragoman.engine.rolling.sample.sampler_state import SamplerState
from dragoman.types import SamplingParams
from tests.support.sampling import EOS, FloatArray, distribution, make_state
from tests.support.tiers import examples

MIXED: list[dict[str, Any]] = [
    {},
    {"logprobs": 3},
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 40, "logprobs": 0},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 2.5, "top_p": 0.95},
    {"temperature": 0.8, "min_p": 0.1, "repetition_penalty": 1.2, "frequency_penalty": 0.1},
    {"temperature": 1.2, "typical_p": 0.8, "logit_bias": {5: 2.0}, "logprobs": 5},
    {"temperature": 1.0, "presence_penalty": 0.5, "bad_word_ids": ((9, 3), (4,)), "min_tokens": 9},
    {"temperature": 1.0, "top_n_sigma": 1.5, "xtc_probability": 0.5, "xtc_threshold": 0.01, "dry_multiplier": 0.8},
    {"temperature": 0.9, "xtc_probability": 0.5, "xtc_threshold": 0.001, "top_k": 30, "logprobs": 1},
    {"repetition_penalty": 1.3, "allowed_token_ids": tuple(range(0, 500, 3)), "logprobs": 2},
]


def make_states(sampler: Sampler) -> list[SamplerState]:
    return [make_state(sampler, (9, 5, 9), seed=seed, **request) for seed, request in enumerate(MIXED)]


def facts(sampled: Sampled, row: int) -> tuple[Any, ...]:
    """Everything a row got, exactly."""
    return int(sampled.token_ids[row]), sampled.logprobs[row], sampled.top_logprobs[row]


# 1003 columns: rows begin at odd addresses and end inside a column, a vector register and a mask word.
@pytest.mark.parametrize("vocab_size", [1003, 32_000])
@pytest.mark.parametrize("scale", [0.3, 4.0], ids=["flat", "peaked"])
def test_a_row_gets_the_same_alone_and_in_any_batch(vocab_size: int, scale: float) -> None:
    sampler = Sampler(vocab_size)
    logits = np.random.default_rng(7).normal(0, scale, (len(MIXED), vocab_size)).astype(np.float32)
    together = sampler.sample(logits.copy(), make_states(sampler))
    reverse = sampler.sample(logits[::-1].copy(), make_states(sampler)[::-1])
    for row, state in enumerate(make_states(sampler)):
        alone = Sampler(vocab_size).sample(logits[row : row + 1].copy(), [state])
        assert facts(together, row) == facts(alone, 0) == facts(reverse, len(MIXED) - 1 - row)


@pytest.mark.parametrize("vocab_size", [1003, 32_000])
def test_processed_rows_are_the_same_alone_and_in_any_batch(vocab_size: int) -> None:
    sampler = Sampler(vocab_size)
    logits = np.random.default_rng(8).normal(0, 2, (len(MIXED), vocab_size)).astype(np.float32)
    together = sampler.process(logits.copy(), make_states(sampler))
    for row, state in enumerate(make_states(sampler)):
        alone = sampler.process(logits[row : row + 1].copy(), [state])
        assert together[row].tobytes() == alone[0].tobytes()


params = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.01, 0.7, 1.0, 3.0]),
        "top_k": st.sampled_from([0, 1, 5, 50]),
        "top_p": st.sampled_from([1.0, 0.95, 0.3, 1e-6]),
        "min_p": st.sampled_from([0.0, 0.05, 1.0]),
        "typical_p": st.sampled_from([1.0, 0.9, 0.2]),
        "top_n_sigma": st.sampled_from([0.0, 0.5, 2.0]),
        "xtc_probability": st.sampled_from([0.0, 0.5, 1.0]),
        "dry_multiplier": st.sampled_from([0.0, 0.8]),
        "repetition_penalty": st.sampled_from([1.0, 0.5, 1.8]),
        "presence_penalty": st.sampled_from([0.0, -2.0, 2.0]),
        "frequency_penalty": st.sampled_from([0.0, -2.0, 2.0]),
        "logit_bias": st.dictionaries(st.integers(0, 30), st.floats(-100, 100, width=32), max_size=3),
        "min_tokens": st.integers(0, 12),
        "stop_token_ids": st.lists(st.integers(0, 20), max_size=2).map(tuple),
        "allowed_token_ids": st.none() | st.sets(st.integers(0, 24), min_size=8).map(tuple),
    }
)
bad_words = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple), max_size=5).map(tuple)


def make_logits(seed: int, vocab_size: int) -> FloatArray:
    """Logits that favour few tokens, so that constraints are tested often."""
    row = np.random.default_rng(seed).normal(0, 2, vocab_size).astype(np.float32)
    row[:8] += 4
    return row


@settings(max_examples=examples(100))
@given(params, bad_words, st.integers(0, 2**64 - 1))
def test_no_run_violates_its_constraints(sampling: dict[str, Any], bad_word_ids: Any, seed: int) -> None:
    sampler = Sampler(25)
    prompt = (4, 2)
    state = make_state(sampler, prompt_ids=prompt, bad_word_ids=bad_word_ids, seed=seed, **sampling)
    ends = {EOS, *sampling["stop_token_ids"]}
    generated: list[int] = []
    for position in range(14):
        row = make_logits(seed % 1000 + position, 25)
        exact = distribution(sampler, row, state)
        assert (exact >= 0).all()
        assert exact.sum() == pytest.approx(1.0, abs=1e-9)
        only_end_left = exact[EOS] == 1.0 and not np.isfinite(sampler.process(row[None].copy(), [state])[0, 1:]).any()
        token_id = int(sampler.sample(row[None].copy(), [state]).token_ids[0])
        assert exact[token_id] > 0
        if only_end_left:
            break
        assert token_id not in ends or position >= sampling["min_tokens"]
        assert sampling["allowed_token_ids"] is None or token_id in sampling["allowed_token_ids"]
        generated.append(token_id)
        state.observe(token_id)
        text = (*prompt, *generated)
        assert not any(text[-len(word) :] == word for word in bad_word_ids)


def test_thousands_of_random_runs_keep_the_minimum_length_and_avoid_bad_words() -> None:
    sampler, num_runs, min_tokens, words = Sampler(6), 3000, 4, ((1, 2), (3,), (2, 2, 4), (5, 1, 5))
    first = make_state(sampler, temperature=1.0, min_tokens=min_tokens, bad_word_ids=words, stop_token_ids=(4,))
    states = [first.fork(index) for index in range(num_runs)]
    runs: list[list[int]] = [[] for _ in states]
    for _ in range(8):
        sampled = sampler.sample(np.zeros((num_runs, 6), dtype=np.float32), states)
        for run, state, token_id in zip(runs, states, sampled.token_ids.tolist(), strict=True):
            run.append(token_id)
            state.observe(token_id)
    assert len({tuple(run) for run in runs}) > num_runs / 2  # they are different runs indeed
    for run in runs:
        assert not {EOS, 4} & set(run[:min_tokens])
        for word in words:
            assert all(tuple(run[begin : begin + len(word)]) != word for begin in range(len(run)))
    assert any({EOS, 4} & set(run[min_tokens:]) for run in runs)


@settings(max_examples=examples(60))
@given(params, st.integers(0, 1000))
def test_neutral_parameters_change_nothing(sampling: dict[str, Any], seed: int) -> None:
    """A feature at its neutral value is the same as a feature left out."""
    sampler = Sampler(25)
    neutral = SamplingParams()
    explicit = {**sampling, "top_k": 25, "logit_bias": {1: 0.0}, "allowed_token_ids": tuple(range(25))}
    plain = {**sampling, "top_k": neutral.top_k, "logit_bias": {}, "allowed_token_ids": None}
    row = make_logits(seed, 25)
    assert distribution(sampler, row, make_state(sampler, (1, 2), **explicit)) == pytest.approx(
        distribution(sampler, row, make_state(sampler, (1, 2), **plain)), abs=1e-6
    )
