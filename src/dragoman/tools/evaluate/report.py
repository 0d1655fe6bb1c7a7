"""Writes the measures of an evaluation, for people or as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from dragoman.tools.evaluate.measures import Measures


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
