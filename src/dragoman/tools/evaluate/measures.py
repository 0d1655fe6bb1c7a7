"""The numbers of an evaluation, token by token and for a whole text, and their report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

_ROWS = 16  # rows at a time, which stay in the processor's caches


class TokenScores(NamedTuple):
    """Scores of each token. Shapes: all [tokens]; without a reference all but the first are empty.

    `surprises`, `reference_surprises`: minus the log-probability, in nats. `divergences`: KL(reference || model) in
    nats. `agrees`: both have the same most likely token.
    """

    surprises: Array
    reference_surprises: Array
    divergences: Array
    agrees: Array


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of a text. `divergence_mean`, `divergence_p99`: nats; `agreement`: a share of the tokens."""

    num_tokens: int
    perplexity: float
    reference_perplexity: float | None = None
    divergence_mean: float | None = None
    divergence_p99: float | None = None
    agreement: float | None = None


def score_tokens(logits: Array, targets: Array, reference: Array | None = None) -> TokenScores:
    """The scores of the tokens `targets`, each of which follows a row of logits. Raises: ValueError, unless finite.

    Shapes: logits and reference f32 [tokens, vocab], targets i64 [tokens].
    """
    parts = [
        _scores(logits[rows], targets[rows], None if reference is None else reference[rows])
        for rows in (slice(begin, begin + _ROWS) for begin in range(0, len(targets), _ROWS))
    ]
    return joined_scores(parts)


def joined_scores(parts: Sequence[TokenScores]) -> TokenScores:
    return TokenScores(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def measures_of(scores: TokenScores) -> Measures:
    perplexity = float(np.exp(scores.surprises.mean()))
    if not len(scores.divergences):
        return Measures(len(scores.surprises), perplexity)
    return Measures(
        num_tokens=len(scores.surprises),
        perplexity=perplexity,
        reference_perplexity=float(np.exp(scores.reference_surprises.mean())),
        divergence_mean=float(scores.divergences.mean()),
        divergence_p99=float(np.percentile(scores.divergences, 99)),
        agreement=float(scores.agrees.mean()),
    )


def _scores(logits: Array, targets: Array, reference: Array | None) -> TokenScores:
    totals, places = _log_totals(logits), targets[:, None]
    surprises = totals - np.take_along_axis(logits, places, axis=1)[:, 0]
    if reference is None:
        nothing = np.zeros(0)
        return TokenScores(surprises, nothing, nothing, np.zeros(0, dtype=bool))
    reference_totals = _log_totals(reference)
    probabilities = np.exp(reference - reference_totals[:, None].astype(np.float32))
    # sum of p (log p - log q) with the totals outside of the sum: equal logits give exactly 0
    differences = np.einsum("rv,rv->r", probabilities, reference - logits, dtype=np.float64)
    return TokenScores(
        surprises,
        reference_totals - np.take_along_axis(reference, places, axis=1)[:, 0],
        np.maximum(differences - (reference_totals - totals), 0.0),
        logits.argmax(axis=1) == reference.argmax(axis=1),
    )


def _log_totals(logits: Array) -> Array:
    """The logarithm of the sum of exponentials, f64 [rows]."""
    highest = logits.max(axis=1)
    totals: Array = highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1, dtype=np.float64))
    if not np.isfinite(totals).all():
        raise ValueError("a logit is not a finite number")
    return totals


# --- report -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evaluated:
    model: str
    dtype: str
    against: str | None
    against_dtype: str | None
    text: str
    window: int
    stride: int


def evaluation_json(evaluated: Evaluated, measures: Measures) -> str:
    """The measures as one JSON object; unmeasured ones are null."""
    found: dict[str, Any] = asdict(evaluated) | asdict(measures)
    return json.dumps(found) + "\n"


def evaluation_text(evaluated: Evaluated, measures: Measures) -> str:
    rows = [
        ("model", f"{evaluated.model} ({evaluated.dtype})"),
        ("text", f"{measures.num_tokens} tokens of {evaluated.text}, in windows of {evaluated.window}"),
        ("perplexity", f"{measures.perplexity:.4f}"),
    ]
    if measures.divergence_mean is not None:
        rows += [
            ("against", f"{evaluated.against} ({evaluated.against_dtype})"),
            ("its perplexity", f"{measures.reference_perplexity:.4f}"),
            ("KL divergence", f"{measures.divergence_mean:.6f} nats, 99th percentile {measures.divergence_p99:.6f}"),
            ("top-1 agreement", f"{measures.agreement:.2%}"),
        ]
    return "".join(f"{name:<16} {value}\n" for name, value in rows)
