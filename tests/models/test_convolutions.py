"""Models whose layers convolve, or have states, compute what transformers computes, however a sequence is cut into steps.

The cases are tests/models/families; scripts/record_family_references.py recorded them in float32.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.models import LoadedModel, ModelOptions, load_model
from tests.support.family_checkpoint import FAMILIES, write_family_checkpoint
from tests.support.forward import forward_batch
from tests.support.tiers import width

NAMES = [
    "lfm2",
    "lfm2_new_style",
    "qwen3_5",
    "qwen3_5_text",
    "qwen3_next",
    "mamba2",
    "granite4_hybrid",
    "falcon_h1",
    "nemotron_h",
    "jamba",
    "recurrent_gemma",
]  # of three tokens' convolutions, and of four; with states of every kind, also where no layer attends


@pytest.fixture(scope="module", params=NAMES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name = str(request.param)
    return name, write_family_checkpoint(name, tmp_path_factory.mktemp(name))


@pytest.fixture(scope="module")
def model(checkpoint: tuple[str, Path]) -> tuple[str, LoadedModel]:
    name, directory = checkpoint
    return name, load_model(directory, ModelOptions(weight_type="f32"))


def check(model: tuple[str, LoadedModel], num_tokens: int, steps: list[tuple[int, int]]) -> None:
    """The logits of a prompt's tokens, as the last step that computed them left them, are the reference's."""
    name, loaded = model
    reference = np.load(FAMILIES / f"{name}.npz")
    token_ids = [int(token_id) for token_id in reference[f"token_ids_{num_tokens}"]]
    runner = OpenVinoRunner(loaded, num_blocks=30)
    logits = np.zeros((num_tokens, runner.vocab_size), dtype=np.float32)
    for begin, end in steps:
        blocks = range(29, 29 - -(-end // 32), -1)
        batch = forward_batch([(token_ids[begin:end], begin, blocks)], logit_rows=range(end - begin))
        logits[begin:end] = runner.forward(batch)
    found = logits[np.ix_(reference[f"positions_{num_tokens}"], reference["columns"])]
    expected = reference[f"logits_{num_tokens}"]
    assert np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)) < 1e-4


@pytest.mark.parametrize("num_tokens", width([5, 90, 700], [90]))
def test_float32_logits_equal_the_reference(model: tuple[str, LoadedModel], num_tokens: int) -> None:
    check(model, num_tokens, [(0, num_tokens)])


@pytest.mark.parametrize(
    "cuts",
    [list(range(91)), [0, 1, 3, 31, 32, 33, 64, 65, 66, 90], [0, 30, 34, 63, 90]],
    ids=["token by token", "at the edges of blocks", "across the edges"],
)
def test_steps_look_back_at_earlier_ones(model: tuple[str, LoadedModel], cuts: list[int]) -> None:
    check(model, 90, list(pairwise(cuts)))


@pytest.mark.parametrize("name", ["lfm2", "lfm2_new_style"])
def test_where_tokens_may_be_taken_back_a_step_may_begin_anywhere(name: str, tmp_path: Path) -> None:
    directory = write_family_checkpoint(name, tmp_path)
    loaded = load_model(directory, ModelOptions(weight_type="f32", takes_back=True))
    check((name, loaded), 90, [(0, 40), (20, 60), (59, 61), (35, 90), (89, 90)])
