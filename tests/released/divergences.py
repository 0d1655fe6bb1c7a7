"""How far the distributions of a released checkpoint's next tokens are from exact ones, in nats.

Does: compute. Does not: ask a server, or judge. Used by scripts/record_llama_cpp.py and the tests beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FOLDER = Path(__file__).parent
NUM_LIKELIEST = 64

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]


class Exact(NamedTuple):
    """At each position transformers' likeliest tokens, their logarithms, and last the logarithm of all others together."""

    ids: np.ndarray[Any, np.dtype[np.int32]]
    logarithms: Floats


def recorded_exact(name: str) -> Exact:
    """The exact distributions of a checkpoint on the scored texts, one after another."""
    with np.load(FOLDER / f"{name}_exact.npz") as found:
        return Exact(found["ids"], found["logarithms"])


def divergences(exact: Exact, logarithms: Floats) -> dict[str, float]:
    """Kullback-Leibler divergences over all positions of a model that gives the likeliest tokens these logarithms."""
    likeliest = np.asarray(logarithms, dtype=np.float64)
    rest = np.log(np.maximum(1 - np.exp(likeliest).sum(axis=1, keepdims=True), 1e-7))
    wanted = np.asarray(exact.logarithms, dtype=np.float64)
    lost = (np.exp(wanted) * (wanted - np.concatenate((likeliest, rest), axis=1))).sum(axis=1)
    return {"mean": float(lost.mean()), "p99": float(np.quantile(lost, 0.99)), "max": float(lost.max())}
