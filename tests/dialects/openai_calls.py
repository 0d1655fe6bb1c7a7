"""Short words for the tests of the OpenAI-shaped dialects: make a call, take it through a generation, read the answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Literal, NamedTuple

import pytest

from dragoman.errors import InvalidRequest
from dragoman.server.api import Call, Dialect, HttpCall, ModelProfile
from dragoman.server.apis.lmi.dialects import LMI, lmi_route, negotiate
from dragoman.server.apis.openai_wire.chat import ChatDialect, ChatRoute
from dragoman.server.apis.openai_wire.completions import CompletionsDialect
from dragoman.server.apis.openai_wire.profile import V1, Profile
from dragoman.server.apis.ovms_wire import V3, V3_CHAT
from dragoman.types import GenerationEvent, GenerationRequest, SamplingParams, TokenOutput
from tests.support.golden import interleaved_events
from tests.support.scripted import scripted_result

CompletionsApi = Literal["v1", "v3", "lmi"]
PROFILES: Mapping[str, Profile] = {"v1": V1, "v3": V3, "lmi": LMI}
ROUTES: Mapping[str, ChatRoute] = {
    "v1": negotiate,
    "v3": lambda model, http: V3_CHAT,
    "invocations": lmi_route,
}

NOW_S = 1_716_825_108.75
SERVED = "served-model"


class Refusal(NamedTuple):
    """What a client that was refused reads."""

    status: int
    body: Any
    message: str
    param: str | None


def http_call(body: object, *, path: str = "/x", **headers: str) -> HttpCall:
    """A call with `body` as JSON (bytes go as they are); underscores in header names stand for hyphens."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpCall("POST", path, content, {"content-type": "application/json", **named}, request_id="req-1")


def model(**options: Any) -> ModelProfile:
    """The profile of a model; an option that is not one of its fields is a setting of the operator's."""
    known = {field.name for field in fields(ModelProfile)}
    facts = {name: value for name, value in options.items() if name in known}
    settings = {name: value for name, value in options.items() if name not in known}
    return ModelProfile(**{"name": SERVED, "settings": settings, **facts})


def completions(api: CompletionsApi = "v1", **options: Any) -> CompletionsDialect:
    """A completions dialect with a clock that stands still."""
    return CompletionsDialect(model(**options), PROFILES[api], clock=lambda: NOW_S)


def chats(route: Any = "v1", **options: Any) -> ChatDialect:
    """A chat dialect with a clock that stands still."""
    return ChatDialect(model(**options), ROUTES[route], clock=lambda: NOW_S)


def complete(api: CompletionsApi = "v1", **body: Any) -> Call:
    """A parsed completion call; prompt, and on /v3 the model, are filled in."""
    defaults: dict[str, Any] = {"prompt": "Say it", **({"model": SERVED} if api == "v3" else {})}
    return completions(api).parse(http_call({**defaults, **body}))


def chat(route: Any = "v1", *, options: Mapping[str, Any] | None = None, **body: Any) -> Call:
    """A parsed chat call; messages, and on /v3 the model, are filled in. On /v1 the OpenAI shape is asked for."""
    defaults: dict[str, Any] = {"messages": [{"role": "user", "content": "Say it"}]}
    defaults |= {"model": SERVED} if route == "v3" else {}
    accept = "text/event-stream" if route == "v1" and not options else "*/*"
    return chats(route, **(options or {})).parse(http_call({**defaults, **body}, accept=accept))


def sampling(call: Call) -> SamplingParams:
    """How the call's first request samples."""
    return call.requests[0].sampling


def request(call: Call) -> GenerationRequest:
    """The call's first request."""
    return call.requests[0]


def refusal(dialect: Dialect, http: HttpCall) -> Refusal:
    """The answer to a call that must be refused while it is parsed."""
    with pytest.raises(InvalidRequest) as caught:
        dialect.open(http).parse()
    reply = dialect.error_reply(caught.value, http)
    assert reply.media_type == "application/json"
    return Refusal(reply.status, json.loads(reply.body), caught.value.message, caught.value.param)


def answer(call: Call) -> dict[str, Any]:
    """The whole answer to a call that does not stream, from the script."""
    reply = call.encoder.full([scripted_result(one) for one in call.requests])
    assert (reply.status, reply.media_type) == (200, "application/json")
    parsed: dict[str, Any] = json.loads(reply.body)
    return parsed


def stream_bytes(call: Call, events: Iterable[GenerationEvent] | None = None) -> bytes:
    """The bytes of a streamed answer, from `events` of its only request or from the script."""
    indexed = list(interleaved_events(call)) if events is None else [(0, event) for event in events]
    return b"".join(call.encoder.event(number, event) for number, event in indexed) + call.encoder.end()


def chunks(call: Call, events: Iterable[GenerationEvent] | None = None) -> list[dict[str, Any]]:
    """The objects of a streamed answer; checks the framing and the end mark."""
    body = stream_bytes(call, events)
    if call.encoder.head([]).media_type == "application/jsonlines":
        assert body.endswith(b"\n")
        return [json.loads(line) for line in body.splitlines()]
    *frames, done, rest = body.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(frame.startswith("data: {") for frame in frames)
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def token(text: str, *, shown: str | None = None, data: bytes | None = None, token_id: int = 1) -> TokenOutput:
    """A generated token; `shown` is what it adds to the text if that is not its own text."""
    own = text.encode() if data is None else data
    return TokenOutput(token_id, text if shown is None else shown, text, own, -0.5)
