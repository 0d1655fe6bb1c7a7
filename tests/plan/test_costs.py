"""The costs of steps: told from batches, fitted, kept in files."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.engine.rolling.forward.runner import BlockTables, ForwardBatch, StepWork
from dragoman.tools.plan.costs import (
    CostsError,
    MeasuredStep,
    StepCosts,
    fit_costs,
    read_costs,
    slowness_of,
    write_costs,
)
from tests.plan.replicas import COSTS
from tests.support.tables import table


def batch_of(rows: list[tuple[int, int]], window: int = 0) -> ForwardBatch:
    """Of each sequence (tokens that are there, new tokens), each of which wants its last logits."""
    ends = np.cumsum([0, *(new for _, new in rows)]).astype(np.int32)
    tables = [
        (np.array([min(past, most) for past, _ in rows], dtype=np.int32), np.zeros(0, dtype=np.int32))
        for most in (10**6, window)
    ]
    positions = np.concatenate([np.arange(past, past + new) for past, new in rows])
    return ForwardBatch(
        past_lens=tables[0][0],
        block_indices=tables[0][1],
        block_indices_begins=np.zeros(len(rows) + 1, dtype=np.int32),
        input_ids=np.zeros(len(positions), dtype=np.int64),
        position_ids=positions,
        subsequence_begins=ends,
        logit_indices=(ends[1:] - 1).astype(np.int64),
        max_context_len=100,
        more_tables=(BlockTables(*tables[1], np.zeros(len(rows) + 1, dtype=np.int32)),) if window else (),
    )


def test_the_work_of_a_batch_tells_decoding_from_prompts() -> None:
    work = StepWork.of(batch_of([(9, 1), (19, 1), (10, 4)]))
    assert work == StepWork(6, 3, (30.0,), (11.0 + 12 + 13 + 14,))


def test_each_kind_of_cache_is_counted_as_its_table_shows_it() -> None:
    work = StepWork.of(batch_of([(9, 1), (100, 1)], window=16))
    assert work.contexts == (10.0 + 101, 10.0 + 17)
    assert work.pairs == (0.0, 0.0)


def test_seconds_are_the_sum_of_the_parts() -> None:
    assert COSTS.seconds(StepWork(1, 1, (0.0,), (0.0,))) == pytest.approx(0.0101)
    assert COSTS.seconds(StepWork(36, 2, (1000.0,), (10_000.0,))) == pytest.approx(0.036 + 0.0002 + 0.001 + 0.0001)
    assert COSTS.seconds(StepWork(256, 0, (0.0,), (0.0,))) == pytest.approx(0.24)  # as from 64 to 128


def works(count: int) -> list[StepWork]:
    dice = random.Random(3)
    found = []
    for _ in range(count):
        rows, prompt = dice.randrange(9), dice.choice([0, 0, 8, 16, 56, 64, 120])
        if rows + prompt:
            context, pairs = rows * dice.randrange(300), prompt * dice.randrange(300)
            found.append(StepWork(rows + prompt, rows, (float(context),), (float(pairs),)))
    return found + [StepWork(size, size, (0.0,), (0.0,)) for size in (1, 8)]


def measured(steps: Sequence[StepWork], seconds: Sequence[float]) -> list[MeasuredStep]:
    """None of which is told to be a change."""
    return [MeasuredStep(work, taken) for work, taken in zip(steps, seconds, strict=True)]


def test_a_fit_finds_the_costs_that_made_the_steps() -> None:
    steps = [work for work in works(300) if work.num_tokens <= 64]
    fitted = fit_costs(measured(steps, [COSTS.seconds(work) for work in steps]))
    for work in steps:
        assert fitted.seconds(work) == pytest.approx(COSTS.seconds(work), rel=0.02)
    assert fitted.context_s[0] == pytest.approx(COSTS.context_s[0], rel=0.1)
    assert fitted.deviation < 0.01


def test_a_fit_is_not_misled_by_single_slow_steps() -> None:
    steps = [work for work in works(300) if work.num_tokens <= 64]
    seconds = [COSTS.seconds(work) * (10 if index % 10 == 0 else 1) for index, work in enumerate(steps)]
    fitted = fit_costs(measured(steps, seconds))
    offs = [abs(fitted.seconds(work) / COSTS.seconds(work) - 1) for work in steps]
    assert float(np.median(offs)) < 0.05


def test_what_steps_deviate_from_their_costs_is_kept() -> None:
    dice = random.Random(5)
    steps = [work for work in works(400) if work.num_tokens <= 64]
    slownesses = [dice.choice([0.9, 1.0, 1.0, 1.1, 1.5]) for _ in steps]
    seconds = [COSTS.seconds(work) * slow for work, slow in zip(steps, slownesses, strict=True)]
    taken_by = measured(steps, seconds)
    found = slowness_of(fit_costs(taken_by), taken_by)
    assert [taken for taken, _ in found] == pytest.approx(seconds, abs=1e-6)
    assert [share for _, share in found] == pytest.approx(slownesses, rel=0.05)


def test_a_prompt_costs_something_however_short_it_is() -> None:
    """Which is told from what as many decoding sequences cost, in steps that have both as well."""
    truth = msgspec.structs.replace(COSTS, prompt_s=0.004)
    assert truth.seconds(StepWork(8, 1, (0.0,), (36.0,))) == pytest.approx(0.012 + 1e-4 + 36e-8 + 0.004)
    steps = [work for work in works(300) if work.num_tokens <= 64]
    fitted = fit_costs(measured(steps, [truth.seconds(work) for work in steps]))
    assert fitted.prompt_s == pytest.approx(0.004, rel=0.05)


def test_another_number_of_tokens_than_before_costs_something() -> None:
    truth = msgspec.structs.replace(COSTS, change_s=0.006)
    small = StepWork(1, 1, (0.0,), (0.0,))
    assert truth.seconds(small, is_change=True) == pytest.approx(0.0101 + 0.006)
    steps = [work for work in works(300) if work.num_tokens <= 64]
    changes = [index % 3 == 0 for index in range(len(steps))]
    taken = [truth.seconds(work, is_change=changed) for work, changed in zip(steps, changes, strict=True)]
    fitted = fit_costs([MeasuredStep(*step) for step in zip(steps, taken, changes, strict=True)])
    assert fitted.change_s == pytest.approx(0.006, rel=0.05)


def test_a_few_steps_tell_nothing_about_how_they_deviate() -> None:
    few = works(30)
    assert slowness_of(COSTS, measured(few, [COSTS.seconds(work) for work in few])) == ()


@given(st.lists(st.tuples(st.integers(1, 512), st.floats(1e-5, 10.0)), min_size=1, max_size=30))
def test_a_fit_of_anything_never_makes_more_work_cost_less(steps: list[tuple[int, float]]) -> None:
    fitted = fit_costs([MeasuredStep(StepWork(size, 1, (0.0,), (float(size),)), time) for size, time in steps])
    seconds = [fitted.seconds(StepWork(size, 1, (0.0,), (float(size),))) for size in range(1, 600, 7)]
    assert all(later >= earlier * (1 - 1e-12) for earlier, later in pairwise(seconds))  # no more than rounding


def test_a_file_keeps_costs(tmp_path: Path) -> None:
    write_costs(tmp_path / "costs.json", COSTS)
    assert read_costs(tmp_path / "costs.json") == COSTS


@table(
    ("changed", "said"),
    [
        ({"row_s": -1.0}, "must not be negative"),
        ({"http_s": -0.1}, "must not be negative"),
        ({"prompt_s": -0.1}, "must not be negative"),
        ({"change_s": -0.1}, "must not be negative"),
        ({"slowness": [[0.1, 1.0], [0.1, 0.0]]}, "slowness must be pairs of numbers of more than 0"),
        ({"row_s": "fast"}, "Expected `float`"),
        ({"rows_s": 1.0}, "unknown field `rows_s`"),
        ({"tokens": []}, "at least one"),
        ({"tokens": [[1, 0.2], [8, 0.1]]}, "must ascend"),
        ({"tokens": [[1, 0.0]]}, "more than 0"),
        ({"pair_s": []}, "for each cache kind"),
    ],
)
def test_a_file_that_says_something_else_is_refused_on_one_line(
    changed: dict[str, object], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(msgspec.json.encode({**msgspec.to_builtins(COSTS), **changed}))
    with pytest.raises(CostsError) as raised:
        read_costs(path)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_costs_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    with pytest.raises(CostsError, match="must be a file that can be written"):
        write_costs(tmp_path / "nowhere" / "costs.json", COSTS)
    with pytest.raises(CostsError, match="must be a JSON file"):
        read_costs(tmp_path / "nothing.json")


def test_a_single_size_costs_the_same_for_all() -> None:
    costs = StepCosts(tokens=((1, 0.5),), row_s=0.0, context_s=(0.0,), pair_s=(0.0,))
    assert costs.seconds(StepWork(100, 0, (0.0,), (0.0,))) == 0.5
