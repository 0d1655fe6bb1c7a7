"""Whole answers of the completions dialect on /v1 and /invocations, byte by byte."""

from __future__ import annotations

from dragoman.server.apis.openai_wire.completions import CompletionsDialect
from tests.dialects.openai_calls import PROFILES, model
from tests.support.golden import answer, case_names, check_golden, load_case
from tests.support.tables import table

NOW_S = 1_716_825_108.0


@table("name", case_names("openai_"))
def test_the_answer_is_the_golden_one(name: str, update_golden: bool) -> None:
    case = load_case(name)
    more = dict(case.options)
    profile = PROFILES[more.pop("api", "v1")]
    dialect = CompletionsDialect(model(name="demo", **more), profile, clock=lambda: NOW_S)
    check_golden(name, answer(dialect, case.http(), case.failure), update=update_golden)
