"""Calls of models that embed or score, as the dialects' tests make them: through the opening, over a fake service."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from dragoman.errors import ServerError
from dragoman.server.api import HttpCall, Reply
from dragoman.server.apis import all_apis
from dragoman.server.apis.openai_wire.pooling import TextsDialect
from dragoman.server.apis.rerank import SCORE
from dragoman.server.endpoints import dialect_of
from dragoman.server.http.fields import Switches
from dragoman.server.operations import GenerateOperation
from dragoman.server.pooling.base import PoolingKind
from dragoman.server.responder import error_reply
from dragoman.types import Limits
from tests.support.fake_pooling import FakePooling
from tests.support.real_dialects import fake_profile, real_dialects

NOW_S = 1_716_825_108.75
LIMITS = Limits(max_prompts=4, max_token_ids=8, max_text_chars=200)

OPERATIONS = {
    operation.path: operation
    for api in all_apis()
    for operation in api.operations
    if isinstance(operation, GenerateOperation)
}


def http_call(path: str, body: Any, **headers: str) -> HttpCall:
    """A call with that body."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"content-type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
    return HttpCall("POST", path, content, fields, request_id="req-1")


def reply_of(http: HttpCall, service: FakePooling | None, **more: Any) -> Reply:
    """The answer to a call, by the dialect that the operation of its path chooses; None = a model that generates.

    `more`: what its profile says besides.
    """
    profile = fake_profile(pooling=service, limits=LIMITS)
    dialects = {
        **real_dialects(pooling=service, limits=LIMITS, **more),
        "rerank.score": TextsDialect(profile, SCORE, lambda: NOW_S),
    }
    dialect = dialect_of(OPERATIONS[http.path], dialects, http)

    async def run() -> Reply:
        try:
            answer = dialect.open(http).answer
            assert answer is not None
            made = await answer(Switches().for_call(http.headers))
        except ServerError as error:
            return error_reply(dialect, error, http)
        assert isinstance(made, Reply)
        return made

    return asyncio.run(run())


def embedding() -> FakePooling:
    """A model that embeds."""
    return FakePooling()


def scoring() -> FakePooling:
    """A model that scores."""
    return FakePooling(PoolingKind.SCORE)


def called(path: str, body: Any, service: FakePooling | None = None, **headers: str) -> tuple[int, Any]:
    """Status and decoded body of the answer."""
    reply = reply_of(http_call(path, body, **headers), service)
    return reply.status, json.loads(reply.body)
