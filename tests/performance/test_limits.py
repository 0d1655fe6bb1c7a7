"""The recorded costs: the table fits what is measured, and growth beyond the margin is told."""

from __future__ import annotations

from tests.performance.cases import CASES
from tests.performance.limits import RECORD, complaint, read_table


def test_the_table_names_what_is_measured_and_nothing_else() -> None:
    for version, costs in read_table().items():
        assert {name.partition(":")[0] for name in costs} == set(CASES), version


def test_growth_beyond_the_margin_is_told_with_both_numbers_and_the_command() -> None:
    limits = {"work": 1000.0}
    assert complaint("work", 1150.0, limits) is None
    assert complaint("work", 1.0, limits) is None
    told = complaint("work", 1200.0, limits)
    assert told is not None
    assert "work: grew from 1000 to 1200 instructions (+20%" in told
    assert RECORD in told
    assert complaint("new work", 5.0, {}) is not None
