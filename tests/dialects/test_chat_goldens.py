"""Whole answers of the chat dialect on /v1 and /invocations, byte by byte."""

from __future__ import annotations

from dragoman.server.apis.openai_wire.chat import ChatDialect
from tests.dialects.openai_calls import ROUTES, model
from tests.support.golden import answer, case_names, check_golden, load_case
from tests.support.tables import table

NOW_S = 1_711_997_860.0


@table("name", case_names("chat_"))
def test_the_answer_is_the_golden_one(name: str, update_golden: bool) -> None:
    case = load_case(name)
    options = dict(case.options)
    route = ROUTES[options.pop("route")]
    dialect = ChatDialect(model(name="demo", **options), route, clock=lambda: NOW_S)
    check_golden(name, answer(dialect, case.http(), case.failure), update=update_golden)
