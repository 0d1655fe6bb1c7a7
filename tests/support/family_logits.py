"""Compares a loaded model's logits with those recorded for its case of tests/models/families.

Does: run a recorded prompt, whole or cut, and measure. Does not: judge. Used by the tests of families and by
scripts/models_page.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from dragoman.models import LoadedModel
from tests.support.family_checkpoint import FAMILIES, Array
from tests.support.graph_steps import GraphSteps

PROMPTS = (5, 90, 700)
"""The numbers of tokens of the recorded prompts."""


def error_on_prompt(loaded: LoadedModel, name: str, num_tokens: int, cuts: Sequence[int] = ()) -> float:
    """Relative root-mean-square difference from the reference; the prompt goes in as one chunk or is cut."""
    reference = np.load(FAMILIES / f"{name}.npz")
    token_ids = [int(token_id) for token_id in reference[f"token_ids_{num_tokens}"]]
    boundary = loaded.facts.long_context_from
    steps = GraphSteps(loaded, num_tokens, is_long=boundary is not None and num_tokens > boundary)
    ends = cuts or (0, num_tokens)
    logits: Array = np.concatenate([steps.step(token_ids[begin:end]) for begin, end in itertools.pairwise(ends)])
    expected = reference[f"logits_{num_tokens}"]
    found = logits[np.ix_(reference[f"positions_{num_tokens}"], reference["columns"])]
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))
