"""Whole answers to conversations with pictures in each API, byte by byte; the fake engine says what it was given."""

from __future__ import annotations

import asyncio

from dragoman.server.apis.openai_wire.chat import ChatDialect
from dragoman.server.generation.service import Service
from tests.dialects.openai_calls import ROUTES, model
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_engine import FakeEngine, saying
from tests.support.golden import answer_of_service, case_names, check_golden, load_case
from tests.support.seeing import STRINGS, seeing_service
from tests.support.tables import table

NOW_S = 1_711_997_860.0


@table("name", case_names("picture_"))
def test_the_answer_is_the_golden_one(name: str, update_golden: bool) -> None:
    case = load_case(name)
    options = dict(case.options)
    blind = Service(name="m", engine=FakeEngine(saying("?")), tokenizer=ByteTokenizer(), chat_template=STRINGS)
    service = blind if options.pop("text_only", False) else seeing_service(max_pictures=2)
    route = ROUTES[options.pop("route")]
    dialect = ChatDialect(model(name="demo", **options), route, clock=lambda: NOW_S)
    check_golden(name, asyncio.run(answer_of_service(dialect, case.http(), service)), update=update_golden)
