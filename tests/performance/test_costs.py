"""No guarded piece of work takes more instructions than it did when they were recorded, with the same Python."""

from __future__ import annotations

import pytest

from tests.performance.cases import CASES
from tests.performance.limits import RECORD, complaint, python_version, read_table
from tests.performance.process import CountingProcess


@pytest.mark.parametrize("case", CASES)
def test_the_work_costs_no_more_than_recorded(case: str, counting: CountingProcess) -> None:
    limits = read_table().get(python_version())
    if limits is None:
        pytest.skip(f"no costs were recorded with Python {python_version()}, only growth is guarded: {RECORD}")
    complaints = [complaint(name, cost, limits) for name, cost in counting.run(CASES[case]).items()]
    told = "\n".join(filter(None, complaints))
    assert not told, told


def test_the_table_names_what_is_measured_and_nothing_else() -> None:
    for version, costs in read_table().items():
        assert {name.partition(":")[0] for name in costs} == set(CASES), version


def test_growth_beyond_the_margin_is_told_with_both_numbers_and_the_way_out() -> None:
    limits = {"work": 1000.0}
    assert complaint("work", 1150.0, limits) is None
    assert complaint("work", 1.0, limits) is None
    told = complaint("work", 1200.0, limits)
    assert told is not None
    assert "work: grew from 1000 to 1200 instructions (+20%" in told
    assert RECORD in told


def test_work_without_a_recorded_cost_is_told_too() -> None:
    assert complaint("new work", 5.0, {}) is not None
