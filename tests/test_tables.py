"""Tables of tests: all rows run, all failures are told, and rows have directories and patches of their own."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from tests.support.tables import Rows, RowsFailed, table


def test_every_failing_row_is_told_by_its_name_and_the_others_run() -> None:
    ran: list[tuple[str, int]] = []

    @table("name", ["a", "b"])
    @table(("number", "told"), [(1, "no"), (2, "yes"), (3, "no")], ids=lambda value: f"<{value}>")
    def check(name: str, number: int, told: str) -> None:
        ran.append((name, number))
        if number == 3:
            pytest.fail("it is 3")
        assert told == "no" or name == "a", "it is wrong"

    with pytest.raises(RowsFailed) as caught:
        check()
    assert len(ran) == 6
    assert len(caught.value.failures) == 3
    said = str(caught.value)
    assert said.startswith("2 of 2 rows fail:\n- a: ")
    assert said.count("- <3>, <no>: ") == 2
    assert said.count("- <2>, <yes>: ") == 1
    assert said.count("it is wrong") == 1
    assert said.count("it is 3") == 2


def test_what_ends_a_run_ends_the_loop() -> None:
    def check(ending: type[BaseException]) -> None:
        with Rows() as rows:
            for error in (ValueError, ending, TypeError):
                with rows.row(error):
                    raise error

    for ending in (KeyboardInterrupt, pytest.skip.Exception):
        with pytest.raises(ending):
            check(ending)


@table("row", range(3))
def test_a_row_has_a_directory_patches_and_a_log_of_its_own(
    row: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert caplog.text == ""
    logging.getLogger("tables").warning("row %d", row)
    assert f"row {row}" in caplog.text
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert "TABLE_ROW" not in os.environ
    monkeypatch.setenv("TABLE_ROW", str(row))


@pytest.mark.parametrize("other", ["x", "y"])
@table("row", [1, 2])
def test_other_parameters_and_fixtures_stay(other: str, row: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert other in "xy"
    assert row in (1, 2)
    assert tmp_path_factory.getbasetemp().is_dir()


def test_a_table_must_fit_its_test() -> None:
    for names, rows in (("a,b", [(1,)]), ("a", []), ("c", [1])):
        with pytest.raises(AssertionError):
            table(names, rows)(lambda a, b: None)
