"""Short ways to send calls to the LMI and TGI dialects in tests."""

from __future__ import annotations

import json
from operator import attrgetter
from typing import Any

import msgspec

from dragoman.server.api import Call, HttpCall, ModelProfile
from dragoman.server.apis.lmi.dialect import LmiDialect
from dragoman.server.apis.lmi_wire.parameters import LmiOptions
from dragoman.server.apis.tgi import TgiDialect
from dragoman.types import GenerationRequest
from tests.support.golden import Answer, answer

PROMPT = "What is it?"


def http(body: Any, path: str = "/invocations", **headers: str) -> HttpCall:
    """A call with a JSON body; header names use underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpCall("POST", path, msgspec.json.encode(body), named, request_id="req-1")


def parse(parameters: dict[str, Any] | None = None, *, inputs: Any = PROMPT, **options: Any) -> Call:
    """The parsed call of an LMI body."""
    return LmiDialect(LmiOptions(**options)).parse(http({"inputs": inputs, "parameters": parameters or {}}))


def request_of(parameters: dict[str, Any] | None = None, **options: Any) -> GenerationRequest:
    """The single request of an LMI body."""
    (request,) = parse(parameters, **options).requests
    return request


def reply_to(parameters: dict[str, Any] | None = None, *, stream: bool = False, **options: Any) -> Answer:
    """The answer to an LMI body with a scripted generation."""
    body = {"inputs": PROMPT, "parameters": parameters or {}, "stream": stream}
    return answer(LmiDialect(LmiOptions(**options)), http(body))


def body_of(parameters: dict[str, Any] | None = None, **options: Any) -> Any:
    """The JSON of the whole answer to an LMI body."""
    return json.loads(reply_to(parameters, **options).body)


def lines_of(reply: Answer) -> list[Any]:
    """The objects of a JSON-lines stream; every line has to end in a newline."""
    *lines, rest = reply.body.split(b"\n")
    assert rest == b""
    return [json.loads(line) for line in lines]


def events_of(reply: Answer) -> list[Any]:
    """The objects of a server-sent event stream; every event has to end in a blank line."""
    *events, rest = reply.body.split(b"\n\n")
    assert rest == b""
    assert all(event.startswith(b"data: {") for event in events)
    return [json.loads(event[6:]) for event in events]


def tgi_request(parameters: dict[str, Any] | None = None) -> GenerationRequest:
    """The request of a TGI body."""
    dialect = TgiDialect(ModelProfile())
    (request,) = dialect.parse(http({"inputs": PROMPT, "parameters": parameters or {}}, "/generate")).requests
    return request


def value_at(request: GenerationRequest, path: str) -> Any:
    """The attribute of a request at a dotted path."""
    return attrgetter(path)(request)
