"""Short words for the tests of Responses: make a call, take it through a generation, read its answer and its events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from dragoman.server.api import Call, ModelProfile
from dragoman.server.apis.responses import store as stores
from dragoman.server.apis.responses.dialect import ResponsesDialect
from dragoman.server.apis.responses.request import OPENAI_RESPONSES, OVMS_RESPONSES
from dragoman.server.apis.responses.store import Asking, ResponseStore
from dragoman.types import ChatPrompt, GenerationEvent
from tests.dialects.openai_calls import NOW_S, SERVED, http_call, stream_bytes

Route = Literal["v1", "v3"]
PROFILES = {"v1": OPENAI_RESPONSES, "v3": OVMS_RESPONSES}
ID = f"resp_{'0' * 47}1"
TOOL: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}


def responses(route: str = "v1", **options: Any) -> ResponsesDialect:
    """A dialect with a clock that stands still, whose responses all have one id."""
    model = ModelProfile(**{"name": SERVED, **options})
    return ResponsesDialect(model, PROFILES[route], clock=lambda: NOW_S, new_id=lambda caller, is_stored: ID)


def respond(route: Route = "v1", **body: Any) -> Call:
    """A parsed call; input, and on /v3 the model, are filled in."""
    defaults: dict[str, Any] = {"input": "Say it", **({"model": SERVED} if route == "v3" else {})}
    return responses(route).parse(http_call({**defaults, **body}))


def prompt(call: Call) -> ChatPrompt:
    """The conversation that a call makes."""
    found = call.requests[0].prompt
    assert isinstance(found, ChatPrompt)
    return found


def messages(items: list[Any], **body: Any) -> list[Any]:
    """The messages that items become."""
    return list(prompt(respond(input=items, **body)).messages)


def events_of(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream on `/v1`; checks framing and numbers."""
    *frames, rest = data.decode().split("\n\n")
    assert rest == ""
    events = []
    for frame in frames:
        name, payload = frame.split("\n")
        events.append(json.loads(payload.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def streamed(call: Call, events: Iterable[GenerationEvent] | None = None) -> list[dict[str, Any]]:
    """The events of a streamed answer, from `events` or from the script."""
    return events_of(stream_bytes(call, events))


@contextmanager
def calling(store: ResponseStore) -> Iterator[Asking]:
    """A call of a server that has this store."""
    made = Asking(store)
    token = stores._ASKING.set(made)
    try:
        yield made
    finally:
        stores._ASKING.reset(token)
