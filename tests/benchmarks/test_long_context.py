"""Sequences decode behind contexts that nobody has computed, on the real kernels; how fast is not looked at here."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.long_context.__main__ import Cells, arguments, in_turn
from benchmarks.long_context.decoding import decode_cost
from benchmarks.long_context.filled_runner import FilledRunner, decode_batch, load, prompt_batch
from benchmarks.long_context.report import Cell, Pair, caches_table, cells_table, pairs_table
from benchmarks.long_context.steps import prompt_cost
from benchmarks.long_context.windows import WINDOW
from benchmarks.serving.processes import ProcessFailed
from dragoman.engine.rolling.blocks.block_manager import CachePool
from dragoman.engine.rolling.forward.runner import ForwardBatch
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


def test_sequences_behind_a_shared_prefix_have_its_blocks_and_last_ones_of_their_own(
    runner: FilledRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: list[ForwardBatch] = []
    forward = runner.inner.forward

    def noted(batch: ForwardBatch) -> npt.NDArray[np.float32]:
        tables.append(batch)
        logits: npt.NDArray[np.float32] = forward(batch)
        return logits

    monkeypatch.setattr(runner.inner, "forward", noted)
    decode_cost(runner, 3, 4 * BLOCK_SIZE, 1, shares=True)
    rows = tables[-1].block_indices.reshape(3, -1)
    assert (rows[:, :4] == rows[0, :4]).all()
    assert len(set(rows[:, 4])) == 3


def test_a_prompt_costs_for_each_token_at_least_its_attention(runner: FilledRunner) -> None:
    cost = prompt_cost(runner.inner, 700)
    assert 0 <= cost.attention_ms < cost.ms_per_token


def test_tables_of_windows_leave_out_what_nobody_sees() -> None:
    pool = CachePool(100, WINDOW)
    batch = decode_batch(pool, 2, WINDOW + 6000)
    assert WINDOW <= len(batch.block_indices) // 2 * BLOCK_SIZE < WINDOW + 2 * BLOCK_SIZE
    assert batch.past_lens[0] < len(batch.block_indices) // 2 * BLOCK_SIZE
    assert len(decode_batch(CachePool(1000), 2, WINDOW + 6000).block_indices) > 2 * 6000 // BLOCK_SIZE


def test_a_table_has_ratios_within_rounds_shares_of_bandwidth_and_why_cells_are_empty() -> None:
    slow = {"own": [10.0, 20.0], "openvino": [30.0, 60.0]}  # the machine was slow in the second round
    decode = Cell("decode", 8, 4096, slow, {"own": 0.3, "openvino": 0.3}, {"llama.cpp": "needs 9.0 GB, 2.0 are free"})
    prompt = Cell("prompts", 0, 8000, {"own": [1.0], "openvino": [0.5], "llama.cpp": [2.5]})
    shared = Cell("shared", 32, 4096, {"openvino": [100.0]}, {"openvino": 1.0})
    lines = cells_table([decode, prompt, shared], ["own", "openvino", "llama.cpp"], 40.0).splitlines()
    assert lines[0] == "| | own kernels, tokens/s | by OpenVINO's | by llama.cpp |"
    assert lines[2:5] == [
        "| 8 behind 4,096 | 533.3 (50%) | 3.00 (17%) | - |",
        "| a prompt of 8,000 tokens | 1,000.0 | 0.50 | 2.50 |",
        "| 32 behind 4,096, shared by all | - | 320.0 tokens/s (25%) | - |",
    ]
    assert lines[-1] == "8 behind 4,096: no llama.cpp: needs 9.0 GB, 2.0 are free."


def test_a_table_of_caches_has_what_steps_take_beyond_those_behind_few_tokens() -> None:
    short = Cell("decode", 8, 64, {"own": [10.0, 11.0], "openvino": [20.0, 21.0]}, {"own": 0.2, "openvino": 0.2})
    long = Cell("decode", 8, 4096, {"own": [20.0, 21.0], "openvino": [50.0, 51.0]}, {"own": 0.3, "openvino": 0.3})
    alone = Cell("decode", 32, 4096, {"own": [9.0]}, {"own": 0.3})  # there is no shorter one to compare with
    lines = caches_table([short, long, alone], ["own", "openvino", "genai"], 40.0).splitlines()
    assert lines[0] == "| | own kernels, caches in GB/s | by OpenVINO's | by GenAI |"
    assert lines[2:] == ["| 8 behind 4,096 | 10.0 (25%) | 3.00 | - |"]
    assert caches_table([short], ["own", "openvino"], 40.0) == ""


def test_a_table_of_borders_has_the_second_case_by_the_first() -> None:
    pair = Pair("borders", "32 to 33 rows", {"own": [1.0, 2.0, 4.0]}, {"own": [1.1, 2.2, 8.0]})
    assert pairs_table([pair], ["own", "openvino"]).splitlines()[-1] == "| 32 to 33 rows | 1.10 | - |"


class Timed:
    """A contender whose steps take a thousandth of a millisecond for each token of their contexts."""

    weight_bytes, token_bytes, always_shares = 1e9, 1e6, False

    def __init__(self, room: int) -> None:
        self.room = room
        self.asked: list[tuple[int, int, bool]] = []

    def step_ms(self, streams: int, context: int, _num_steps: int, *, shares: bool) -> float:
        self.asked.append((streams, context, shares))
        return streams * context / 1000

    def prompt_ms(self, _num_tokens: int) -> float:
        return 1.0

    def why_not(self, streams: int, context: int, *, shares: bool) -> str:
        return "" if shares or streams * context <= self.room else "has no room"


def test_cells_without_room_or_time_are_skipped_by_those_contenders_alone() -> None:
    contenders = {"own": Timed(10**9), "llama.cpp": Timed(2000)}
    cells = Cells(contenders, Namespace(rounds=2, most_seconds=1))
    first, second, third = (cells.steps("decode", streams, 1000) for streams in (1, 8, 200))
    assert first.ms == {"own": [1.0, 1.0], "llama.cpp": [1.0, 1.0]}
    assert first.gb["own"] == pytest.approx(2.0)
    assert second.ms == {"own": [8.0, 8.0]}
    assert second.skipped == {"llama.cpp": "has no room"}
    assert not third.ms
    assert third.skipped["own"] == "would take 2 s, more than --most-seconds 1"
    shared = cells.steps("shared", 8, 1000)
    assert set(shared.ms) == {"own", "llama.cpp"}
    assert shared.gb["own"] == pytest.approx(2.0), "what all share is read once"


def test_a_contender_that_dies_is_told_of_and_the_others_are_measured_on(monkeypatch: pytest.MonkeyPatch) -> None:
    dying = Timed(10**9)

    def die(_num_tokens: int) -> float:
        raise ProcessFailed("genai ended with code 1: Error: no memory")

    monkeypatch.setattr(dying, "prompt_ms", die)
    cells = Cells({"own": Timed(10**9), "genai": dying}, Namespace(rounds=2, most_seconds=9))
    prompt, step = cells.prompt(500), cells.steps("decode", 1, 1000)
    assert prompt.ms == {"own": [1.0, 1.0]}
    assert prompt.skipped == {"genai": "genai ended with code 1: Error: no memory"}
    assert set(step.ms) == {"own"}


def test_both_cases_of_all_take_turns() -> None:
    calls: list[str] = []

    def case(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    pair = in_turn("borders", "", 2, {"own": (lambda: case("a"), lambda: case("b"))})
    assert calls == ["a", "b", "a", "b"]
    assert (pair.first, pair.second) == ({"own": [1.0, 3.0]}, {"own": [2.0, 4.0]})


def test_quick_settings_are_small_and_given_ones_win() -> None:
    asked = arguments(["--quick", "--only", "own", "openvino", "own", "--streams", "7"])
    assert (asked.streams, asked.rounds, asked.only) == ([7], 1, ["own", "openvino"])
    assert max(asked.contexts) < max(arguments(["--only", "own"]).contexts)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--streams", "0"], "--streams: is '0', must be a whole number"),
        (["--contexts", "40000"], "--contexts: is 40000, must be at most 32704"),
        (["--prompts", "40000"], "--prompts: is 40000, must be at most 32768"),
        (["--memory-gb", "none"], "--memory-gb: is 'none', must be a number of gigabytes"),
        (["--only", "own", "genai"], "--model: is missing, must be a directory for genai"),
        (["--only", "llama.cpp", "--model", ".", "--layers", "2"], "--layers: is 2, must be left out with llama.cpp"),
    ],
)
def test_settings_that_cannot_be_measured_are_refused(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        arguments(words)
    assert says in capsys.readouterr().err
