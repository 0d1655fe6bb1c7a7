"""Whole answers of Ollama's dialects, byte by byte."""

from __future__ import annotations

from tests.dialects.ollama_calls import dialect_for
from tests.support.golden import answer, case_names, check_golden, load_case
from tests.support.tables import table


@table("name", case_names("ollama_"))
def test_the_answer_is_the_golden_one(name: str, update_golden: bool) -> None:
    case = load_case(name)
    check_golden(name, answer(dialect_for(case.path), case.http(), case.failure), update=update_golden)
