"""Tests a model that embeds or scores texts on this machine, with the pooling engine's settings. On the main thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from dragoman.engine.pooling import LoadedPooling, PoolingFactory
from dragoman.models.pooling.model import LoadedPooler
from dragoman.tools.selftest.checks import TEXTS, Check, Encode, SelfTest, Trial
from dragoman.types import PooledText

EXACT_TOLERANCE, ROUNDED_TOLERANCE = 1e-5, 2e-3  # of 1 - cosine, or of a score; in f32 and in other types
MOST_DISTANCE = {"bf16": 0.01, "f16": 0.01, "int8": 0.02, "int4": 0.15}  # from the model's results in f32
_RUNS = 3


def pooling_test(trial: Trial) -> SelfTest:
    """All checks of a model. Raises: ModelError, EngineOptionError."""
    loaded = PoolingFactory().load(trial.setup_with())
    begin = perf_counter()
    try:
        checks = list(_checks(loaded, trial))
    finally:
        loaded.pooler.close()
    return SelfTest(trial.name, f"{loaded.stored.weight_type} weights", round(perf_counter() - begin, 2), checks)


def _checks(loaded: LoadedPooling, trial: Trial) -> Iterator[Check]:
    pooler, stored = loaded.pooler, loaded.stored.weight_type
    texts = texts_of(trial.encode, pooler.max_tokens)
    tolerance = EXACT_TOLERANCE if stored == "f32" else ROUNDED_TOLERANCE
    trial.progress("comparing rows", 0.0)
    alone, alone_s = _rows(pooler, [[text] for text in texts])
    together, together_s = _rows(pooler, [texts])
    yield distance_check("batched as alone", distance(alone, together, pooler), tolerance)
    turned, _ = _rows(pooler, [texts[::-1]])
    yield distance_check("in any order", distance(together, turned[::-1], pooler), tolerance)
    again, _ = _rows(pooler, [texts])
    is_same = bool(np.array_equal(together, again))
    why = "the same texts in the same company had other rows the second time"
    yield Check.judged("same rows twice", is_same, "the same" if is_same else "others", "to the bit", why)
    yield distinct_check(together, pooler)
    num_tokens = sum(len(text.token_ids) for text in texts)
    yield speed_check(num_tokens, alone_s, together_s)
    yield _reference_check(together, stored, texts, trial)
    trial.progress("comparing rows", 1.0)


def texts_of(encode: Encode, max_tokens: int) -> list[PooledText]:
    """The self-test's texts and halves of them as tokens, cut to the model's context."""
    pieces = [piece for text in TEXTS for piece in (text, text[: len(text) // 2])]
    return [PooledText(tuple(encode(piece))[:max_tokens]) for piece in pieces]


def _rows(pooler: LoadedPooler, batches: Sequence[Sequence[PooledText]]) -> tuple[Any, float]:
    rows, seconds = [], []
    for _ in range(_RUNS):
        begin = perf_counter()
        rows = [row for batch in batches for row in pooler.run(batch)]
        seconds.append(perf_counter() - begin)
    return np.stack([_flat(row, pooler) for row in rows]), median(seconds)


def _flat(row: Any, pooler: LoadedPooler) -> Any:
    """Each text's result as a row of fixed length: all words' weights, or the mean of the tokens' vectors."""
    match pooler.recipe.kind:
        case "sparse":
            words = np.zeros(pooler.dimensions, dtype=np.float32)
            words[row["index"]] = row["value"]
            return words
        case "tokens":
            return row.mean(axis=0)
        case _:
            return row


def distance(vectors: Any, other: Any, pooler: LoadedPooler) -> float:
    """The largest distance over the texts: 1 - cosine of vectors, or the difference of scores."""
    if pooler.recipe.kind in ("score", "classify"):
        return float(np.max(np.abs(vectors - other)))
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(other, axis=1)
    return float(np.max(1 - np.sum(vectors * other, axis=1, dtype=np.float64) / lengths))


def distance_check(name: str, found: float, most: float, why: str = "rows depend on what is computed beside") -> Check:
    """The verdict on a distance; NaN is a failure."""
    return Check.judged(name, found <= most, f"{abs(found):.2g}", f"{most:g}", why)


def distinct_check(rows: Any, pooler: LoadedPooler) -> Check:
    """Check that different texts have different results; missing weights would make them equal."""
    apart = distance(rows[0:1], rows[2:3], pooler)
    is_ok = bool(np.isfinite(rows).all()) and apart > 0
    why = "different texts have the same row, or numbers that are none: are the weights whole?"
    return Check.judged("different texts differ", is_ok, f"{apart:.2g}", "above 0", why)


def speed_check(num_tokens: int, alone_s: float, together_s: float) -> Check:
    """Check that texts computed together take about as long as one after the other, or less."""
    found = f"{num_tokens / together_s:.0f} tokens/s together, {num_tokens / alone_s:.0f} alone"
    is_ok = together_s <= 1.5 * alone_s
    why = "texts are computed faster one after the other than together: is the processor busy?"
    return Check.judged("texts in a batch", is_ok, found, "not much slower together", why)


def _reference_check(rows: Any, stored: str, texts: Sequence[PooledText], trial: Trial) -> Check:
    name = "stored weights as f32"
    if (skipped := trial.skipped(name, "the weights are f32" if stored == "f32" else "")) is not None:
        return skipped
    reference = PoolingFactory().load(trial.setup_with(dtype="f32")).pooler
    try:
        found = distance(_rows(reference, [texts])[0], rows, reference)
    finally:
        reference.close()
    return distance_check(name, found, MOST_DISTANCE[stored], "rounding changes this model much: try another dtype")
