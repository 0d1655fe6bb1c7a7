"""Every family computes what transformers computes, on prompts that lie past every window and rotary boundary.

The cases are tests/models/families; scripts/record_family_references.py recorded them in float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.models import ModelOptions, load_model
from dragoman.models.families import FAMILIES, find_family
from tests.support.family_checkpoint import case_names, first_case_names, write_family_checkpoint
from tests.support.family_logits import PROMPTS, error_on_prompt

CAPPED = "gemma2"  # whose scores are capped, which is left out where anything is compressed
CUTS = (0, 300, 301, 365, 699, 700)  # a long chunk, single tokens, one that ends in the middle of a block


def test_the_list_names_the_families_by_their_architectures() -> None:
    for architecture in FAMILIES:
        family = find_family(architecture)
        assert not isinstance(family, type) or architecture in family.architectures  # type: ignore[attr-defined]


@pytest.fixture(scope="module", params=case_names())
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name = str(request.param)
    return name, write_family_checkpoint(name, tmp_path_factory.mktemp(name))


def test_float32_logits_equal_the_reference(checkpoint: tuple[str, Path], record_property: Any) -> None:
    name, directory = checkpoint
    loaded = load_model(directory, ModelOptions(weight_type="f32"))
    errors = {str(num_tokens): error_on_prompt(loaded, name, num_tokens) for num_tokens in PROMPTS}
    errors["700 in chunks"] = error_on_prompt(loaded, name, 700, CUTS)
    record_property(f"{name}_f32_relative_error", max(errors.values()))
    assert max(errors.values()) < 1e-4, errors


@pytest.mark.parametrize("name", [name for name in first_case_names() if name != CAPPED])
def test_compressed_weights_stay_close_to_the_reference(name: str, tmp_path: Path) -> None:
    """In int4, which is int8 where columns are not whole groups; docs/models.md tells both of every case."""
    loaded = load_model(write_family_checkpoint(name, tmp_path), ModelOptions(weight_type="int4"))
    assert error_on_prompt(loaded, name, 90) < 1.0
