"""Whole answers of the messages dialect, byte by byte."""

from __future__ import annotations

from tests.dialects.anthropic_calls import messages
from tests.support.golden import answer, case_names, check_golden, load_case
from tests.support.tables import table


@table("name", case_names("anthropic_"))
def test_the_answer_is_the_golden_one(name: str, update_golden: bool) -> None:
    case = load_case(name)
    check_golden(name, answer(messages("demo", **case.options), case.http(), case.failure), update=update_golden)
