"""Which LMI calls stream and in which form, and the lines of streams of several prompts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.server.api import Call
from dragoman.server.apis.lmi.dialect import LmiDialect
from dragoman.server.apis.lmi_wire.parameters import LmiOptions
from dragoman.types import FinishReason, GenerationEvent, TokenOutput
from tests.dialects.lmi_calls import PROMPT, events_of, http, lines_of, parse, reply_to
from tests.support.golden import answer
from tests.support.tables import table

LINES = "application/jsonlines"
EVENTS = "text/event-stream"
WHOLE = "application/json"

CASES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str, str]] = [
    # options, top level, parameters, Accept, media type of the answer
    ({}, {}, {}, "", WHOLE),
    ({}, {"stream": False}, {}, "", WHOLE),
    ({}, {"stream": None}, {}, "", WHOLE),
    ({}, {"stream": True}, {}, "", LINES),
    ({}, {"stream": "true"}, {}, "", LINES),
    ({}, {}, {"stream": True}, "", LINES),
    ({}, {}, {"output_formatter": "jsonlines"}, "", LINES),
    ({}, {}, {"output_formatter": "sse"}, "", EVENTS),
    ({}, {"stream": True}, {"output_formatter": "sse"}, "", EVENTS),
    ({}, {"stream": True}, {"output_formatter": "sse"}, LINES, EVENTS),
    ({}, {"stream": True}, {"output_formatter": "json"}, "", LINES),
    ({}, {"stream": True}, {"output_formatter": "custom"}, "", LINES),
    ({}, {}, {"output_formatter": "custom"}, "", WHOLE),
    ({}, {"stream": False}, {"stream": True}, "", WHOLE),
    ({}, {"stream": True}, {"stream": False}, "", LINES),
    ({}, {"stream": None}, {"stream": True}, "", LINES),
    ({}, {"stream": False}, {"output_formatter": "jsonlines"}, "", WHOLE),
    ({}, {}, {"stream": False, "output_formatter": "sse"}, "", WHOLE),
    ({"output_formatter": "jsonlines"}, {"stream": False}, {}, "", WHOLE),
    ({"output_formatter": "sse"}, {}, {"stream": False}, EVENTS, WHOLE),
    ({"tgi_compat": True, "output_formatter": "sse"}, {"stream": False}, {}, "", WHOLE),
    ({"rolling_batch": "disable", "output_formatter": "jsonlines"}, {"stream": False}, {}, "", WHOLE),
    ({"rolling_batch": "disable", "enable_streaming": True}, {"stream": False}, {}, "", LINES),
    ({}, {"stream": True}, {}, EVENTS, EVENTS),
    ({}, {}, {}, EVENTS, WHOLE),
    ({"output_formatter": "jsonlines"}, {}, {}, "", LINES),
    ({"output_formatter": "sse"}, {}, {}, "", EVENTS),
    ({"output_formatter": "sse"}, {}, {}, LINES, LINES),
    ({"output_formatter": "jsonlines"}, {}, {}, EVENTS, EVENTS),
    ({"output_formatter": "json"}, {"stream": True}, {}, "", LINES),
    ({"output_formatter": "jsonlines"}, {}, {"output_formatter": "json"}, "", WHOLE),
    ({"output_formatter": "custom"}, {}, {}, "", WHOLE),
    ({"tgi_compat": True}, {"stream": True}, {}, "", EVENTS),
    ({"tgi_compat": True}, {"stream": True}, {}, LINES, LINES),
    ({"tgi_compat": True}, {}, {}, "", WHOLE),
    ({"rolling_batch": "disable"}, {}, {}, "", WHOLE),
    ({"rolling_batch": "disable"}, {"stream": True}, {}, "", LINES),
    ({"rolling_batch": "disable", "enable_streaming": True}, {}, {}, "", LINES),
    ({"enable_streaming": True}, {}, {}, "", WHOLE),
    ({"rolling_batch": "disable", "enable_streaming": True, "tgi_compat": True}, {}, {}, "", LINES),
]


@table(("options", "top_level", "parameters", "accept", "media_type"), CASES)
def test_the_form_of_an_answer_is_chosen_by_request_then_accept_then_operator(
    options: dict[str, Any], top_level: dict[str, Any], parameters: dict[str, Any], accept: str, media_type: str
) -> None:
    dialect = LmiDialect(LmiOptions(**options))
    reply = answer(dialect, http({"inputs": PROMPT, "parameters": parameters, **top_level}, accept=accept))
    assert (reply.status, reply.media_type) == (200, media_type)
    assert reply.is_stream is (media_type != WHOLE)
    if media_type == WHOLE:
        json.loads(reply.body)
    else:
        assert len((lines_of if media_type == LINES else events_of)(reply)) == 7


def test_an_unknown_formatter_is_reported() -> None:
    assert parse({"output_formatter": "custom"}).ignored == ("output_formatter",)


@table(
    ("top_level", "parameters", "ignored"),
    [
        ({"stream": False}, {"stream": True}, ("stream",)),
        ({"stream": True}, {"stream": False}, ("stream",)),
        ({"stream": True}, {"stream": True}, ()),
        ({"stream": False}, {"output_formatter": "sse"}, ("output_formatter",)),
        ({"stream": False}, {"output_formatter": "json"}, ()),
    ],
)
def test_what_the_top_level_overrules_is_reported(
    top_level: dict[str, Any], parameters: dict[str, Any], ignored: tuple[str, ...]
) -> None:
    call = LmiDialect(LmiOptions()).parse(http({"inputs": PROMPT, "parameters": parameters, **top_level}))
    assert call.ignored == ignored


@table(("top_level", "parameters"), [({"stream": False}, {"stream": True}), ({"stream": False}, {})])
def test_an_error_has_the_form_that_the_answer_would_have_had(
    top_level: dict[str, Any], parameters: dict[str, Any]
) -> None:
    dialect = LmiDialect(LmiOptions(output_formatter="sse"))
    reply = answer(dialect, http({"inputs": PROMPT, "parameters": {**parameters, "top_p": 5}, **top_level}))
    assert (reply.status, "generated_text" in json.loads(reply.body)) == (424, True)
    assert "token" not in json.loads(reply.body)
    assert parse({"output_formatter": "sse"}).ignored == ()


@table("parameters", [{"n": 3}, {"best_of": 3}, {"num_beams": 3}, {"best_of": 3, "n": 2}])
def test_a_stream_is_of_one_sequence_that_is_the_best_drawn(parameters: dict[str, Any]) -> None:
    call = parse({**parameters, "stream": True})
    sampling = call.requests[0].sampling
    assert sampling.n == 1
    assert sampling.best_of == parameters.get("best_of")
    assert sampling.num_beams == parameters.get("num_beams", 1)
    assert call.ignored == (("n",) if "n" in parameters else ())


def test_events_of_other_sequences_are_not_streamed() -> None:
    call = parse({"stream": True})
    assert call.encoder.event(0, GenerationEvent(1, "x")) == b""
    several = parse({"stream": True}, inputs=["One", "Two"])
    assert several.encoder.event(0, GenerationEvent(1, "x")) == b""


def push(call: Call, request_index: int, *texts: str, is_last: bool = False) -> list[list[str]]:
    """The `outputs` of the lines that one event makes, of one token for each text."""
    finish = FinishReason.LENGTH if is_last else None
    event = GenerationEvent(0, "".join(texts), tuple(TokenOutput(1, text) for text in texts), finish)
    body = call.encoder.event(request_index, event)
    return [json.loads(line)["outputs"] for line in body.splitlines()]


def end(call: Call) -> list[list[str]]:
    """The `outputs` of the lines at the end of the stream."""
    return [json.loads(line)["outputs"] for line in call.encoder.end().splitlines()]


@pytest.fixture
def pair() -> Call:
    """A streamed call of two prompts."""
    return parse({"stream": True}, inputs=["One", "Two"])


def test_a_line_of_outputs_waits_until_every_prompt_has_made_its_step(pair: Call) -> None:
    assert push(pair, 0, "a") == []
    assert push(pair, 1, "A") == [["a", "A"]]
    assert push(pair, 1, "B") == []
    assert push(pair, 0, "b") == [["b", "B"]]


def test_there_are_as_many_lines_as_tokens_whenever_they_come(pair: Call) -> None:
    """One prompt begins later, and several tokens may come at once, some of them without a text."""
    assert push(pair, 0, "a") == []
    assert push(pair, 0, "b", "", "c") == []
    assert push(pair, 1, "A", "B") == [["a", "A"], ["b", "B"]]
    assert push(pair, 1, "C", is_last=True) == [["", "C"], ["c", ""]]
    assert push(pair, 0, "", is_last=True) == [["", ""]]
    assert end(pair) == []


def test_finished_prompts_have_empty_strings(pair: Call) -> None:
    push(pair, 0, "a")
    assert push(pair, 1, "A", is_last=True) == [["a", "A"]]
    assert push(pair, 0, "b") == [["b", ""]]
    assert push(pair, 0, "c", is_last=True) == [["c", ""]]
    assert end(pair) == []


def test_what_still_waits_is_sent_at_the_end(pair: Call) -> None:
    assert push(pair, 0, "a") == []
    assert end(pair) == [["a", ""]]


def test_the_outputs_of_each_prompt_add_up_to_its_text() -> None:
    body = {"inputs": ["One", "Two", "Three"], "stream": True}
    lines = lines_of(answer(LmiDialect(LmiOptions()), http(body)))
    assert ["".join(texts) for texts in zip(*(line["outputs"] for line in lines), strict=True)] == [
        " Deep learning is fun. 🍊"
    ] * 3


def test_an_array_streams_as_events_where_the_shape_is_tgis() -> None:
    body = {"inputs": ["One"], "stream": True, "parameters": {"max_new_tokens": 1}}
    assert events_of(answer(LmiDialect(LmiOptions(tgi_compat=True)), http(body))) == [{"outputs": [" Deep"]}]


def test_a_dynamic_request_takes_one_sequence_and_reports_n_and_details() -> None:
    call = parse({"n": 2, "details": True, "do_sample": True, "top_n_tokens": 2}, rolling_batch="disable")
    assert call.requests[0].sampling.n == 1
    assert call.ignored == ("n", "details", "top_n_tokens")


def test_a_dynamic_request_returns_the_best_of_the_beams() -> None:
    call = parse({"num_beams": 3}, rolling_batch="disable")
    assert (call.requests[0].sampling.num_beams, call.requests[0].sampling.n) == (3, 1)


def test_batch_size_above_one_gives_the_dynamic_shape() -> None:
    assert json.loads(reply_to(batch_size=2).body) == [{"generated_text": " Deep learning is fun. 🍊"}]
