"""Requests, logits and a statistical test for the sampler's tests."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sample.sampler_state import SamplerState
from dragoman.engine.rolling.sample.temperature_and_top_p import DoubleArray, Survivors
from dragoman.types import EngineRequest, SamplingParams, SequenceBreaker, TokenMasker
from tests.support.live_parts import masker_of, with_masker

FloatArray = npt.NDArray[np.float32]
EOS = 0


def make_request(
    *,
    prompt_ids: tuple[int, ...] = (1, 2, 3),
    seed: int = 1,
    eos_token_ids: frozenset[int] = frozenset({EOS}),
    bad_word_ids: tuple[tuple[int, ...], ...] = (),
    dry_breakers: tuple[SequenceBreaker, ...] = (),
    masker: TokenMasker | None = None,
    **sampling: Any,
) -> EngineRequest:
    """A request with these sampling parameters; greedy unless a temperature is given."""
    request = EngineRequest(
        request_id="r",
        prompt_ids=prompt_ids,
        sampling=SamplingParams(**{"temperature": 0.0, **sampling}),
        max_tokens=1000,
        seed=seed,
        eos_token_ids=eos_token_ids,
        bad_word_ids=bad_word_ids,
        dry_breakers=dry_breakers,
    )
    return with_masker(request, masker) if masker is not None else request


def make_state(sampler: Sampler, generated: tuple[int, ...] = (), **request: Any) -> SamplerState:
    """The state of a sequence that has generated these tokens."""
    asked = make_request(**request)
    state = sampler.new_state(asked, 0, masker_of(asked))
    for token_id in generated:
        state.observe(token_id)
    return state


def probabilities(survivors: Survivors) -> DoubleArray:
    """The exact distribution that drawing from the survivors follows, [V]; sums to 1, exact zeros for everything else."""
    dense: DoubleArray = np.zeros(survivors.scratch.vocab_size)
    if survivors.ids is None:
        dense[:] = survivors.weights[: dense.size]
    else:
        dense[survivors.ids] = survivors.weights
    dense /= dense.sum()
    return dense


def distribution(sampler: Sampler, logits_row: FloatArray, state: SamplerState) -> DoubleArray:
    """The exact probabilities `sampler.sample` draws from; all in one token if greedy. Shapes: [V]. Mutates: nothing."""
    found: list[DoubleArray] = []

    def draw(survivors: Survivors, uniform: float) -> int:
        found.append(probabilities(survivors))
        return 0

    with mock.patch.object(Survivors, "draw", draw):
        token_id = sampler.sample(logits_row[None].copy(), [state]).token_ids[0]
    if found:
        return found[0]
    certain: DoubleArray = np.zeros(sampler.vocab_size)
    certain[token_id] = 1.0
    return certain


def row_of(*values: float) -> FloatArray:
    """One batch row of logits, [1, n]."""
    return np.array([values], dtype=np.float32)


def logits_of(*probabilities: float) -> FloatArray:
    """The row whose softmax these are, shifted so that nothing relies on normalised logits, [1, n]."""
    with np.errstate(divide="ignore"):
        logits: FloatArray = (np.log(np.array([probabilities])) + 1.5).astype(np.float32)
    return logits


def chi_square_limit(num_categories: int) -> float:
    """What a chi-square statistic exceeds once in about 10,000 tests (Wilson and Hilferty's approximation)."""
    freedom = num_categories - 1
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 3.72 * math.sqrt(spread)) ** 3


def chi_square(counts: npt.NDArray[np.int64], probabilities: npt.NDArray[np.float64]) -> float:
    """Pearson's statistic over the categories that can occur."""
    possible = probabilities > 0
    expected = probabilities[possible] * counts.sum()
    return float(((counts[possible] - expected) ** 2 / expected).sum())
