"""Whole answers on /v3, byte by byte."""

from __future__ import annotations

from dragoman.server.api import Dialect, ModelProfile
from dragoman.server.apis.openai_wire.chat import ChatDialect
from dragoman.server.apis.openai_wire.completions import CompletionsDialect
from dragoman.server.apis.ovms_wire import V3, V3_CHAT
from tests.support.golden import answer, case_names, check_golden, load_case
from tests.support.tables import table

NOW_S = 1_716_825_108.0


def dialect_of(path: str) -> Dialect:
    """The dialect that answers on a path of /v3."""
    if path == "/v3/chat/completions":
        return ChatDialect(ModelProfile(name="demo"), lambda model, http: V3_CHAT, clock=lambda: NOW_S)
    return CompletionsDialect(ModelProfile(name="demo"), V3, clock=lambda: NOW_S)


@table("name", case_names("ovms_"))
def test_the_answer_is_the_golden_one(name: str, update_golden: bool) -> None:
    case = load_case(name)
    check_golden(name, answer(dialect_of(case.path), case.http(), case.failure), update=update_golden)
