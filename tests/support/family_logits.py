"""Compares a loaded model's logits with those recorded for its case of tests/models/families.

Does: run a recorded prompt, whole or cut, and measure. Does not: judge. Used by the tests of families and by
scripts/models_page.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.models import BLOCK_SIZE, LoadedModel
from tests.support.family_checkpoint import FAMILIES, Array, recorded_name
from tests.support.forward import forward_batch

PROMPTS = (5, 90, 700)
"""The numbers of tokens of the recorded prompts."""


def error_on_prompt(loaded: LoadedModel, name: str, num_tokens: int, cuts: Sequence[int] = ()) -> float:
    """Relative root-mean-square difference from the reference; the prompt goes in as one chunk or is cut."""
    reference = np.load(FAMILIES / f"{recorded_name(FAMILIES, name)}.npz")
    token_ids = [int(token_id) for token_id in reference[f"token_ids_{num_tokens}"]]
    runner = OpenVinoRunner(loaded, num_blocks=-(-num_tokens // BLOCK_SIZE))
    pieces = [_logits(runner, loaded, token_ids, part) for part in pairwise(cuts or (0, num_tokens))]
    logits: Array = np.concatenate(pieces)
    runner.close()
    expected = reference[f"logits_{num_tokens}"]
    found = logits[np.ix_(reference[f"positions_{num_tokens}"], reference["columns"])]
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


def logits_of(loaded: LoadedModel, token_ids: Sequence[int]) -> Array:
    """Those of a prompt's tokens. Shape: f32 [T, vocab]."""
    runner = OpenVinoRunner(loaded, num_blocks=-(-len(token_ids) // BLOCK_SIZE))
    logits = _logits(runner, loaded, list(token_ids), (0, len(token_ids)))
    runner.close()
    return logits


def _logits(runner: OpenVinoRunner, loaded: LoadedModel, token_ids: list[int], part: tuple[int, int]) -> Array:
    """Of the tokens in [begin, end); the sequence is in the regime that its whole length has."""
    begin, end = part
    row = (token_ids[begin:end], begin, range(-(-end // BLOCK_SIZE)))
    batch = forward_batch([row], logit_rows=range(end - begin))
    boundary = loaded.facts.long_context_from
    if boundary is not None and len(token_ids) > boundary:
        batch = replace(batch, regimes=np.ones(end - begin, dtype=np.int64))
    return runner.forward(batch).copy()
