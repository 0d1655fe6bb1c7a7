"""No guarded piece of work takes more instructions than it did when they were recorded."""

from __future__ import annotations

import pytest

from tests.performance.cases import CASES
from tests.performance.limits import Limits, complaint, limits_for, python_version, read_table

TABLE = {"3.11": {"work": 1000.0}, "3.12": {"work": 900.0}}


@pytest.mark.parametrize("case", CASES)
def test_the_work_costs_no_more_than_recorded(case: str) -> None:
    limits = limits_for(read_table(), python_version())
    complaints = [complaint(name, cost, limits) for name, cost in CASES[case]().costs.items()]
    told = "\n".join(filter(None, complaints))
    assert not told, told


def test_the_table_names_what_is_measured_and_nothing_else() -> None:
    names = {name for costs in read_table().values() for name in costs}
    assert {name.partition(":")[0] for name in names} == set(CASES)


def test_growth_beyond_the_margin_is_told_with_both_numbers_and_the_way_out() -> None:
    limits = Limits({"work": 1000.0}, "3.11", 0.15)
    assert complaint("work", 1150.0, limits) is None
    assert complaint("work", 1.0, limits) is None
    told = complaint("work", 1200.0, limits)
    assert told is not None
    assert "work: grew from 1000 to 1200 instructions (+20%" in told
    assert "python -m tests.performance.record" in told


def test_work_without_a_recorded_cost_is_told_too() -> None:
    assert complaint("new work", 5.0, Limits({}, "3.11", 0.15)) is not None


@pytest.mark.parametrize(
    ("version", "recorded_with", "margin"),
    [("3.11", "3.11", 0.15), ("3.12", "3.12", 0.15), ("3.14", "3.12", 0.4), ("3.10", "3.11", 0.4)],
)
def test_an_unrecorded_python_is_held_to_the_nearest_one_with_more_room(
    version: str, recorded_with: str, margin: float
) -> None:
    assert limits_for(TABLE, version) == Limits(TABLE[recorded_with], recorded_with, margin)
