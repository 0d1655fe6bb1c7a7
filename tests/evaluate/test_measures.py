"""The numbers, beside a computation in f64 that keeps everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dragoman.tools.evaluate import measures_of, score_tokens


def log_softmax(logits: Any) -> Any:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def test_measures_are_what_their_definitions_say() -> None:
    stream = np.random.RandomState(0)
    reference = (stream.standard_normal((50, 300)) * 4).astype(np.float32)
    logits = (reference + stream.standard_normal((50, 300)) * 0.3).astype(np.float32)
    targets = stream.randint(0, 300, 50)
    found = measures_of(score_tokens(logits, targets, reference))
    mine, its = log_softmax(logits), log_softmax(reference)
    divergences = (np.exp(its) * (its - mine)).sum(axis=1)
    assert found.num_tokens == 50
    assert found.perplexity == pytest.approx(np.exp(-mine[np.arange(50), targets].mean()), rel=1e-5)
    assert found.reference_perplexity == pytest.approx(np.exp(-its[np.arange(50), targets].mean()), rel=1e-5)
    assert found.divergence_mean == pytest.approx(divergences.mean(), rel=1e-4)
    assert found.divergence_p99 == pytest.approx(np.percentile(divergences, 99), rel=1e-4)
    assert found.agreement == np.mean(mine.argmax(axis=1) == its.argmax(axis=1))


def test_equal_logits_are_nothing_apart() -> None:
    logits = np.random.RandomState(1).standard_normal((20, 100)).astype(np.float32)
    found = measures_of(score_tokens(logits, np.zeros(20, int), logits.copy()))
    assert (found.divergence_mean, found.divergence_p99, found.agreement) == (0.0, 0.0, 1.0)


def test_what_is_no_number_is_refused() -> None:
    logits = np.zeros((2, 5), np.float32)
    logits[1, 2] = np.nan
    with pytest.raises(ValueError, match="a logit is not a finite number"):
        score_tokens(logits, np.zeros(2, int))
