"""Whole answers of the LMI dialect, byte by byte."""

from __future__ import annotations

from dragoman.server.apis.lmi.dialect import LmiDialect
from dragoman.server.apis.lmi_wire.parameters import LmiOptions
from tests.support.golden import answer, case_names, check_golden, load_case
from tests.support.tables import table


@table("name", case_names("lmi_"))
def test_the_answer_is_the_golden_one(name: str, update_golden: bool) -> None:
    case = load_case(name)
    dialect = LmiDialect(LmiOptions(**case.options))
    check_golden(name, answer(dialect, case.http(), case.failure), update=update_golden)
