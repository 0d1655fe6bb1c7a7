"""Whole answers of Responses on /v1 and /v3, byte by byte."""

from __future__ import annotations

from tests.dialects.responses_calls import responses
from tests.support.golden import answer, case_names, check_golden, load_case
from tests.support.tables import table


@table("name", case_names("responses_"))
def test_the_answer_is_the_golden_one(name: str, update_golden: bool) -> None:
    case = load_case(name)
    dialect = responses("v3" if case.path.startswith("/v3") else "v1", name="demo", **case.options)
    check_golden(name, answer(dialect, case.http(), case.failure), update=update_golden)
