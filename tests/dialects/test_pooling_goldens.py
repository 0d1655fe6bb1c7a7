"""Whole answers of every API that embeds or ranks, byte by byte."""

from __future__ import annotations

from tests.dialects.pooling_calls import embedding, reply_of, scoring
from tests.support.fake_pooling import FakePooling
from tests.support.golden import Answer, case_names, check_golden, load_case
from tests.support.tables import table

NAMES = [*case_names("embeddings_"), *case_names("rerank_")]


def service_of(name: str) -> FakePooling | None:
    """What answers a case: nobody where the model is one that generates."""
    if name.endswith("_generates"):
        return None
    return scoring() if name.startswith("rerank_") else embedding()


@table("name", NAMES)
def test_the_answer_is_the_golden_one(name: str, update_golden: bool) -> None:
    reply = reply_of(load_case(name).http(), service_of(name))
    answer = Answer(reply.status, reply.media_type, reply.body, reply.headers)
    check_golden(name, answer, update=update_golden)
