"""Bare steps: the best of what each kind of kernel took, and what that says."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks import steps
from benchmarks.neighbours import step_of


@dataclass
class TimedModel:
    """A model whose steps take a hundredth of a second for each token, the first of all of them twice as long."""

    slowness: float
    calls: Any = field(default_factory=itertools.count)

    def seconds_per_step(self, batch: Any, num_steps: int) -> float:
        return self.slowness * len(batch.input_ids) * num_steps * (0.02 if next(self.calls) == 0 else 0.01)


def test_the_best_of_all_rounds_counts_and_rates_fit_it() -> None:
    batches = {name: step_of(name) for name in ("1", "2", "4", "p128")}
    models: Any = {"own": TimedModel(1.0), "openvino": TimedModel(2.0)}
    taken = steps.measure(models, batches, 2)
    assert taken["own"] == pytest.approx({"1": 0.01, "2": 0.02, "4": 0.04, "p128": 1.28})
    found = {kind: steps.summary(times, 100_000_000, 20.0) for kind, times in taken.items()}
    assert found["own"]["share"] == pytest.approx(0.5)
    assert (found["own"]["2_by_1"], found["own"]["4_by_1"]) == pytest.approx((2.0, 4.0))
    head, ours, theirs, times = steps.table("int4", found)
    assert [line.split()[0] for line in (head, ours, theirs, times)] == ["int4,", "own", "openvino", "times"]
    assert times.split()[1:] == ["2.00"] * 4


def test_without_a_step_of_one_there_are_no_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    assert steps.summary({"2": 0.5}, 1, 20.0) == {"ms": {"2": 500.0}, "weights_mb": 1e-6}
    with pytest.raises(SystemExit):
        steps.main(["--steps", "0"])
    assert "0 is no step" in capsys.readouterr().err
