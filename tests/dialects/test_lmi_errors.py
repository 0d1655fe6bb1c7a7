"""How the LMI and TGI dialects answer every kind of error, before and inside a stream."""

from __future__ import annotations

import json
from typing import Any

from dragoman.errors import ALL_KINDS, ServerError
from dragoman.server.api import ModelProfile
from dragoman.server.apis.lmi.dialect import LmiDialect
from dragoman.server.apis.lmi_wire.parameters import LmiOptions
from dragoman.server.apis.tgi import TgiDialect
from tests.dialects.lmi_calls import PROMPT, http, parse
from tests.support.golden import Failure
from tests.support.tables import table

DETAILS = {"finish_reason": "error", "generated_tokens": None, "inputs": None}

LMI_STATUS = {
    "not_found": 404,
    "conflict": 409,
    "no_memory": 507,
    "unknown_path": 404,
    "wrong_method": 405,
    "unauthorized": 401,
    "forbidden": 403,
    "too_large": 413,
    "rate_limited": 429,
    "overloaded": 503,
    "unavailable": 503,
    "cancelled": 503,
    "engine_dead": 503,
    "server_error": 500,
}
TGI_STATUS = {
    "not_found": 404,
    "conflict": 409,
    "no_memory": 507,
    "unknown_path": 404,
    "wrong_method": 405,
    "unauthorized": 401,
    "forbidden": 403,
    "too_large": 413,
    "rate_limited": 429,
    "overloaded": 429,
    "unavailable": 503,
    "cancelled": 500,
} | dict.fromkeys(("invalid_request", "invalid_payload", "invalid_parameter", "unsupported", "capacity"), 422)


def error_of(kind: str) -> ServerError:
    """An error of that kind."""
    return Failure(kind, f"It is {kind}").error()


@table("kind", ALL_KINDS)
@table("stream", [False, True])
@table("options", [{}, {"rolling_batch": "disable"}, {"tgi_compat": True}])
def test_every_kind_is_answered_with_its_status_and_text(kind: str, stream: bool, options: dict[str, Any]) -> None:
    call = http({"inputs": PROMPT, "stream": stream})
    reply = LmiDialect(LmiOptions(**options)).error_reply(error_of(kind), call)
    body = json.loads(reply.body)
    assert (reply.status, reply.media_type) == (LMI_STATUS.get(kind, 424), "application/json")
    assert body["code"] == reply.status
    assert f"It is {kind}" in (body.get("error"), body.get("message"))
    assert ("error_type" in body) is ("tgi_compat" in options)


@table("kind", ["invalid_parameter", "unsupported", "capacity", "engine_failed", "timeout"])
def test_a_failed_generation_looks_like_an_answer_that_says_so(kind: str) -> None:
    dialect = LmiDialect(LmiOptions())
    whole = json.loads(dialect.error_reply(error_of(kind), http({"inputs": PROMPT})).body)
    assert whole["details"] == {**DETAILS, "tokens": None}
    assert whole["generated_text"] == ""
    streamed = json.loads(dialect.error_reply(error_of(kind), http({"inputs": PROMPT, "stream": True})).body)
    assert streamed["token"] == {"id": -1, "text": "", "log_prob": -1, "special_token": True}
    assert streamed["details"] == DETAILS


@table(
    ("options", "body"),
    [
        ({}, {"stream": True}),
        ({}, {"parameters": {"stream": "true"}}),
        ({}, {"parameters": {"output_formatter": "sse", "top_p": 9}}),
        ({"output_formatter": "jsonlines"}, {}),
    ],
)
def test_the_error_has_the_streams_form_whichever_way_the_stream_was_asked_for(
    options: dict[str, Any], body: dict[str, Any]
) -> None:
    reply = LmiDialect(LmiOptions(**options)).error_reply(error_of("engine_failed"), http({"inputs": PROMPT, **body}))
    assert "token" in json.loads(reply.body)


@table("body", [{"stream": False}, {"parameters": {"output_formatter": 5}}, {"stream": "perhaps"}, 7])
def test_the_error_has_the_whole_answers_form_otherwise(body: Any) -> None:
    reply = LmiDialect(LmiOptions()).error_reply(error_of("engine_failed"), http(body))
    assert "tokens" in json.loads(reply.body)["details"]


@table("kind", ALL_KINDS)
def test_any_failure_inside_a_stream_is_its_last_line(kind: str) -> None:
    last = parse({"stream": True}).encoder.stream_error(error_of(kind))
    assert last is not None
    assert last.endswith(b"}\n")
    body = json.loads(last)
    assert (body["code"], body["error"], body["token"]["id"]) == (424, f"It is {kind}", -1)


def test_a_failure_inside_a_dynamic_stream_has_the_dynamic_form() -> None:
    encoder = parse({}, rolling_batch="disable", enable_streaming=True).encoder
    assert encoder.stream_error(error_of("engine_failed")) == (
        b'{"code":424,"message":"invoke handler failure","error":"It is engine_failed"}\n'
    )


def test_a_stream_has_no_trailers() -> None:
    assert parse({"stream": True}).encoder.trailers() == ()


@table("kind", ALL_KINDS)
def test_tgi_answers_every_kind_with_its_own_status(kind: str) -> None:
    reply = TgiDialect(ModelProfile()).error_reply(error_of(kind), http({"inputs": PROMPT}, "/generate"))
    assert reply.status == TGI_STATUS.get(kind, 424)
    assert list(json.loads(reply.body)) == ["error", "error_type"]
