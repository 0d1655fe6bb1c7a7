"""Every family computes what transformers computes, on prompts that lie past every window and rotary boundary.

The cases are tests/models/families; scripts/record_family_references.py recorded them in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.models import ModelOptions, load_model
from dragoman.models.loader import LoadedModel
from dragoman.models.storage.constants import WeightType
from tests.support.family_checkpoint import FAMILIES, case_names, write_family_checkpoint
from tests.support.graph_steps import Array, GraphSteps

CAPPED = ("gemma2",)  # whose scores are capped, which is left out
PROMPTS = (5, 90, 700)
CUTS = (0, 300, 301, 365, 699, 700)  # a long chunk, single tokens, one that ends in the middle of a block


@pytest.fixture(scope="module", params=case_names())
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name = str(request.param)
    return name, write_family_checkpoint(name, tmp_path_factory.mktemp(name))


def error_on_prompt(loaded: LoadedModel, name: str, num_tokens: int, cuts: Sequence[int] = ()) -> float:
    """Relative root-mean-square difference from the reference; the prompt goes in as one chunk or is cut."""
    reference = np.load(FAMILIES / f"{name}.npz")
    token_ids = [int(token_id) for token_id in reference[f"token_ids_{num_tokens}"]]
    boundary = loaded.facts.long_context_from
    steps = GraphSteps(loaded, num_tokens, is_long=boundary is not None and num_tokens > boundary)
    ends = cuts or (0, num_tokens)
    logits: Array = np.concatenate([steps.step(token_ids[begin:end]) for begin, end in pairwise(ends)])
    expected = reference[f"logits_{num_tokens}"]
    found = logits[np.ix_(reference[f"positions_{num_tokens}"], reference["columns"])]
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


def test_float32_logits_equal_the_reference(
    checkpoint: tuple[str, Path], record_property: Any, request: pytest.FixtureRequest
) -> None:
    name, directory = checkpoint
    if name in CAPPED:
        request.applymarker(pytest.mark.xfail(raises=AssertionError, reason="the cap on scores is left out"))
    loaded = load_model(directory, ModelOptions(weight_type="f32"))
    errors = {str(num_tokens): error_on_prompt(loaded, name, num_tokens) for num_tokens in PROMPTS}
    errors["700 in chunks"] = error_on_prompt(loaded, name, 700, CUTS)
    record_property(f"{name}_f32_relative_error", max(errors.values()))
    assert max(errors.values()) < 1e-4, errors


@pytest.mark.parametrize(("weight_type", "bound"), [("int8", 0.25), ("int4", 1.0)])
def test_compressed_weights_stay_close_to_the_reference(
    checkpoint: tuple[str, Path], weight_type: WeightType, bound: float, record_property: Any
) -> None:
    name, directory = checkpoint
    error = error_on_prompt(load_model(directory, ModelOptions(weight_type=weight_type)), name, 90)
    record_property(f"{name}_{weight_type}_relative_error", error)
    assert error < bound or name in CAPPED
