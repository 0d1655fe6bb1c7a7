"""What two models leave each other is measured with real steps; the numbers are not looked at here."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.neighbours import load, shares, step_of
from tests.support.random_checkpoint import UNTIED, write_checkpoint


@pytest.mark.parametrize(("name", "num_tokens", "num_rows", "num_blocks"), [("8", 8, 8, 32), ("p70", 70, 1, 3)])
def test_a_step_is_a_number_of_sequences_or_a_prompt(
    name: str, num_tokens: int, num_rows: int, num_blocks: int
) -> None:
    step = step_of(name)
    assert len(step.input_ids) == len(step.position_ids) == num_tokens
    assert len(step.logit_indices) == len(step.past_lens) == num_rows
    assert len(step.block_indices) == step.block_indices_begins[-1] == num_blocks


@pytest.mark.parametrize("name", ["0", "p0", "p", "prompt"])
def test_anything_else_is_no_step(name: str) -> None:
    with pytest.raises(ValueError, match=r"no step|invalid literal"):
        step_of(name)


def test_both_models_compute(tmp_path: Path) -> None:
    directory = write_checkpoint(UNTIED, tmp_path)
    pair = [load(directory, step_of(name), is_tied=False) for name in ("4", "p40")]
    assert min(shares(pair, 0.05)) > 0
