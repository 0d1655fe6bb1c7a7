"""A row's attention has the same bits whatever other rows a step has, in every type of the cache, behind a long context too.

OpenVINO's kernels divide a long context among threads when a step has fewer rows than threads; the runner then adds some.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.kernels import presence
from dragoman.models import LoadedModel, ModelError, ModelOptions, load_model
from tests.support.cpu import EXACT_PACKED
from tests.support.forward import forward_batch
from tests.support.hybrid_checkpoint import write_hybrid
from tests.support.random_checkpoint import RandomShape, write_checkpoint
from tests.support.tables import Rows

SHAPE = RandomShape(
    "attention", seed=5, hidden_size=256, num_heads=14, num_kv_heads=2, head_size=64, num_layers=2, intermediate_size=128
)  # fmt: skip
CONTEXT, BLOCKS_EACH = 500, 16
STREAM = np.random.RandomState(1)
PROMPT = STREAM.randint(3, 300, CONTEXT).tolist()
DECODED = STREAM.randint(3, 300, 6).tolist()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(SHAPE, tmp_path_factory.mktemp("model"))


def load(checkpoint: Path, kv_type: str = "auto", weight_type: str = "int8", kernels: str = "auto") -> LoadedModel:
    return load_model(checkpoint, ModelOptions(weight_type, kv_type, kernels=kernels))  # type: ignore[arg-type]  # are such


def blocks(number: int) -> range:
    return range(number * BLOCKS_EACH, (number + 1) * BLOCKS_EACH)


def decoded(loaded: LoadedModel, num_others: int, *, as_guesses: bool = False) -> Any:
    """Logits behind each decoded token, beside others; `as_guesses`: of all in one step, each a row of its own."""
    runner = OpenVinoRunner(loaded, BLOCKS_EACH * (num_others + 1))
    runner.forward(forward_batch([(PROMPT, 0, blocks(0))], [CONTEXT - 1]))
    tokens = [([token_id], CONTEXT + place, blocks(0)) for place, token_id in enumerate(DECODED)]
    if as_guesses:
        return runner.forward(forward_batch(tokens, range(len(tokens)))).copy()
    found = []
    for place, token in enumerate(tokens):
        mates = [([7], place, blocks(1 + other)) for other in range(num_others)]
        found.append(runner.forward(forward_batch([token, *mates], [0]))[0].copy())
    return np.array(found)


@pytest.mark.varies("which kernels keep every bit depends on the processor")
@pytest.mark.skipif(not EXACT_PACKED, reason="nobody has measured it on this processor")
def test_a_row_behind_a_long_context_has_the_same_bits_alone_in_company_and_as_a_guess(checkpoint: Path) -> None:
    with Rows() as rows:
        for kv_type, weight_type, kernels in (
            *((kv_type, "int8", "auto") for kv_type in ("auto", "bf16", "f16", "f32", "u8")),
            *(("f32", "f32", kernels) for kernels in ("auto", "openvino")),
        ):
            try:
                loaded = load(checkpoint, kv_type, weight_type, kernels)
            except ModelError:  # does not go with the arithmetic here
                continue
            alone = decoded(loaded, 0)
            for num_others in (1, 2, 20):
                with rows.row(kv_type, weight_type, kernels, num_others):
                    assert np.array_equal(decoded(loaded, num_others), alone)
            with rows.row(kv_type, weight_type, kernels, "as guesses"):
                assert np.array_equal(decoded(loaded, 0, as_guesses=True), alone)


def test_rows_that_are_added_are_of_no_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions keep something of each sequence for the next step, also if it has several rows."""
    loaded = load(write_hybrid(tmp_path), "auto", "f32", "openvino")
    found = []
    for num_threads in (1, 6, 64):
        runner = OpenVinoRunner(loaded, 3)
        monkeypatch.setattr(runner, "_num_threads", num_threads)
        runner.forward(forward_batch([(PROMPT[:20], 0, [0])], [19]))
        for begin in (20, 23):
            rows = [([token_id], place, [0]) for place, token_id in enumerate(PROMPT[begin : begin + 3], begin)]
            step = replace(forward_batch(rows, range(3)), first_rows=np.array([0]))
            found.append(runner.forward(step).copy())
    assert all(np.abs(other - found[index % 2]).max() < 1e-5 for index, other in enumerate(found))


@pytest.mark.parametrize(("num_threads", "sizes"), [(1, []), (2, [1]), (3, [1, 1]), (4, [2]), (64, [2])])
def test_a_step_of_few_rows_gets_some_where_there_are_more_threads(
    num_threads: int, sizes: list[int], checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = OpenVinoRunner(load(checkpoint, weight_type="f32", kernels="openvino"), 3 * BLOCKS_EACH)
    monkeypatch.setattr(runner, "_num_threads", num_threads)
    runner.forward(forward_batch([([5], 0, blocks(0))], [0]))
    assert np.diff(runner.output("subsequence_begins")).tolist() == [1, *sizes]
    runner.forward(forward_batch([([5], 1, blocks(0)), ([6, 7], 0, blocks(1))], [0]))
    assert np.diff(runner.output("subsequence_begins")).tolist() == [1, 2], "a prompt is enough"


@pytest.mark.varies("each instruction set has kernels of its own")
@pytest.mark.skipif(bool(presence.why_not()), reason="there is no library of kernels")
def test_with_kernels_of_our_own_a_prompts_tokens_have_the_bits_of_decoded_ones(checkpoint: Path) -> None:
    tokens = PROMPT[:300]
    for kv_type in ("auto", "u8"):
        loaded = load_model(checkpoint, ModelOptions("int8", kv_type, kernels="own"))
        whole, pieces = OpenVinoRunner(loaded, BLOCKS_EACH), OpenVinoRunner(loaded, BLOCKS_EACH)
        expected = whole.forward(forward_batch([(tokens, 0, blocks(0))], range(len(tokens)))).copy()
        found = [pieces.forward(forward_batch([(tokens[:255], 0, blocks(0))], range(255))).copy()]
        assert pieces.output("subsequence_begins").tolist() == [0, 255]
        for place in range(255, 300):
            found.append(pieces.forward(forward_batch([(tokens[place : place + 1], place, blocks(0))], [0])).copy())
        assert pieces.output("subsequence_begins").tolist() == [0, 1], "no rows are added"
        np.testing.assert_array_equal(np.concatenate(found), expected)
