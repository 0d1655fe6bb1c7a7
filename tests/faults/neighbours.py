"""Victims of faults, and neighbours beside them that must not notice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec

from dragoman.types import EngineRequest
from tests.engine.naive import make_request
from tests.support.api_document import Checker
from tests.support.every_api import Calling, document_of, kind_of
from tests.support.small_server import CALLS, PROFILE, AppCall, Parts, SmallServer, id_of, run, small_server

MARK = ord("?")  # is in the prompts of victims, and in no neighbour's


@cache
def checker() -> Checker:
    """The document of a small server."""
    return Checker(document_of(PROFILE))


def neighbours() -> list[EngineRequest]:
    """Requests that run as long as a victim does."""
    kinds: list[dict[str, Any]] = [{}, {"n": 2, "temperature": 1.0}, {"prompt_logprobs": 0}, {"num_beams": 2, "n": 1}]
    return [
        make_request([1, 2, 3, number], max_tokens=24, name=str(number), ignore_eos=True, **kind)
        for number, kind in enumerate(kinds)
    ]


async def undisturbed(more: Sequence[EngineRequest] = ()) -> list[list[int]]:
    """The tokens of the neighbours, and of `more` requests, without anybody beside them."""
    async with small_server() as server:
        return [await server.collect(request) for request in (*neighbours(), *more)]


async def victims(
    server: SmallServer, calls: Sequence[Calling], more: Sequence[tuple[EngineRequest, EngineRequest]] = ()
) -> list[AppCall]:
    """The calls, answered; neighbours are answered as ever, and nothing is left of anybody.

    `more`: further neighbours, each with a request that has the same tokens on a server of the usual parts.
    """
    expected = await undisturbed([plain for _, plain in more])
    beside = [asyncio.create_task(server.collect(request)) for request in (*neighbours(), *(one for one, _ in more))]
    await asyncio.sleep(0)
    begun = [server.call(calling) for calling in calls]
    answers = [await one.ended() for one in begun]
    assert [await one for one in beside] == expected
    await server.settle()
    return answers


def check_told(calling: Calling, call: AppCall, words: str) -> None:
    """Assert that the failure is told as the API tells errors."""
    if call.is_cut:
        return
    assert call.is_complete, id_of(calling)
    assert words in call.body.decode("utf-8", "replace"), (id_of(calling), call.body)
    if call.status >= 400:
        checker().check_answer(calling.key, call.status, call.media_type, call.body)


def told(parts: Parts, words: str, calls: Sequence[Calling] = CALLS) -> None:
    """Assert that each of the calls, of every API, fails with these words, and alone."""

    async def test() -> None:
        async with small_server(parts) as server:
            for calling, call in zip(calls, await victims(server, calls), strict=True):
                check_told(calling, call, words)

    run(test)


def with_mark() -> list[Calling]:
    """All calls; the parrot's example has none, so it gets one."""
    return [
        replace(
            calling,
            http=msgspec.structs.replace(calling.http, body=calling.http.body.replace(b"a cracker", b"a cracker?")),
        )
        for calling in CALLS
    ]


def asking(calling: Calling, **parameters: Any) -> Calling:
    """The call with more parameters, in the place where its API has them."""
    body = json.loads(calling.http.body)
    body.get("parameters", body).update(parameters)
    return replace(calling, http=msgspec.structs.replace(calling.http, body=json.dumps(body).encode()))


def with_grammars() -> list[Calling]:
    """Every call whose API has grammars, asking for one."""
    value = {"type": "json", "value": {"type": "object"}}
    of_dialects: dict[str, dict[str, Any]] = {
        "lmi": {"grammar": value},
        "tgi": {"grammar": value},
        "chat": {"response_format": {"type": "json_object"}},
        "completions": {"response_format": {"type": "json_object"}},
        "responses": {"text": {"format": {"type": "json_object"}}},
        "anthropic": {"output_format": {"type": "json_schema", "schema": {"type": "object"}}},
        "ollama": {"format": "json"},
        "llamacpp": {"json_schema": {}},
    }
    kinds = ((calling, kind_of(calling)) for calling in CALLS)
    return [asking(calling, **of_dialects[kind]) for calling, kind in kinds if kind in of_dialects]
