"""Sequences decode behind contexts that nobody has computed, on the real kernels; how fast is not looked at here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.long_context.__main__ import arguments
from benchmarks.long_context.decoding import decode_cost, loop_cost
from benchmarks.long_context.filled_runner import FilledRunner, load, prompt_batch
from benchmarks.long_context.steps import prompt_cost
from benchmarks.long_context.windows import WINDOW, WindowRunner
from dragoman.models import BLOCK_SIZE, LoadedModel

NUM_BLOCKS = 40


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load("u8", num_layers=1)


@pytest.fixture
def runner(loaded: LoadedModel) -> Iterator[FilledRunner]:
    runner = FilledRunner(loaded, NUM_BLOCKS)
    yield runner
    runner.close()


def test_sequences_decode_at_once_though_their_contexts_were_never_computed(runner: FilledRunner) -> None:
    cost = decode_cost(runner, 3, 200, 2)
    assert 0 < cost.kernels_ms < cost.step_ms


def test_sequences_that_have_more_blocks_than_there_are_share_them(runner: FilledRunner) -> None:
    assert decode_cost(runner, 2, NUM_BLOCKS * 32, 1).kernels_ms > 0


def test_steps_with_prompts_are_not_computed_and_others_are(runner: FilledRunner) -> None:
    assert not runner.forward(prompt_batch(32, 5)).any()
    assert runner.forward_s == 0
    decoded = runner.forward(prompt_batch(100, 1)).copy()
    assert decoded.any()
    assert runner.forward_s > 0
    folded = replace(prompt_batch(100, 1), block_indices=np.arange(4, dtype=np.int32) + NUM_BLOCKS)
    assert np.array_equal(runner.forward(folded), decoded)


def test_the_whole_cache_holds_keys_and_values(runner: FilledRunner) -> None:
    """The last blocks are copies of the first ones, so that a sequence reads the same from either."""
    batch = prompt_batch(95, 1)
    moved = replace(batch, block_indices=batch.block_indices + np.int32(NUM_BLOCKS - 4))
    assert np.array_equal(runner.forward(batch).copy(), runner.forward(moved))


def test_requests_at_once_are_followed_from_their_prompts_to_their_ends(loaded: LoadedModel) -> None:
    cost = loop_cost(loaded, 4, 40, 6)
    assert cost.prompt_steps >= 1
    assert cost.decode_steps >= 5
    assert 1 <= cost.rows <= 4
    assert min(cost.tokens_per_s, cost.prompt_s, cost.decode_s, cost.host_s) > 0


def test_a_prompt_costs_for_each_token_at_least_its_attention(loaded: LoadedModel) -> None:
    runner = FilledRunner(loaded, NUM_BLOCKS)
    cost = prompt_cost(runner.inner, 700)
    assert 0 <= cost.attention_ms < cost.ms_per_token


@pytest.mark.full("a model as large as those that have windows; only the benchmark reads it")
def test_tables_of_windows_leave_out_what_nobody_sees() -> None:
    runner = WindowRunner("u8", 0.01, 6, has_windows=True)
    context = WINDOW + 600
    batch, whole = runner.batch(2, context), runner.batch(2, context, is_whole=True)
    (windows,), (everything,) = batch.more_tables, whole.more_tables
    assert len(everything.block_indices) == len(whole.block_indices) == len(batch.block_indices)
    assert WINDOW <= len(windows.block_indices) // 2 * BLOCK_SIZE < WINDOW + 2 * BLOCK_SIZE
    assert runner.step_ms(batch, 1) > 0
    assert runner.step_ms(whole, 1) > 0
    runner.close()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--streams", "0"], "--streams: is '0', must be a whole number"),
        (["--contexts", "40000"], "--contexts: is 40000, must be at most 32704"),
        (["--prompts", "40000"], "--prompts: is 40000, must be at most 32768"),
        (["--memory-gb", "none"], "--memory-gb: is 'none', must be a number of gigabytes"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(words)
    assert says in capsys.readouterr().err
