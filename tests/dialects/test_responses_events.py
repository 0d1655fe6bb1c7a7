"""The answers of Responses, whole and streamed: items, events in order with numbers, usage, ends and failures."""

from __future__ import annotations

import json
from typing import Any

from dragoman.errors import ALL_KINDS, Cancelled, EngineFailed
from dragoman.server.generation.service import ResultFold
from dragoman.types import FinishReason, GenerationEvent, GenerationResult, PromptInfo, TokenOutput, ToolCallDelta
from tests.dialects.openai_calls import answer, request, stream_bytes, token
from tests.dialects.responses_calls import ID, TOOL, events_of, respond, streamed
from tests.support.every_api import CLASSES
from tests.support.tables import table

TEXT = " Deep learning is fun. 🍊"
HEX = ID.removeprefix("resp_")
PROMPT = PromptInfo("p", (1, 2, 3), num_cached_tokens=1)


def made(text: str, **more: Any) -> GenerationEvent:
    """An event of one token."""
    return GenerationEvent(0, text, (token(text),), **more)


THINKING = [
    made("<think>", prompt=PROMPT),
    made("a", reasoning="a"),
    made("b", reasoning="b"),
    made("</think>"),
    made("X", content="X"),
    made("Y", content="Y"),
    made("{", tool_calls=(ToolCallDelta(0, "call_1", "weather"),)),
    made("}", tool_calls=(ToolCallDelta(0, arguments='{"city": '), ToolCallDelta(0, arguments='"Oslo"}'))),
    made("{", tool_calls=(ToolCallDelta(1, "call_2", "weather", "{}"),)),
    GenerationEvent(0, "", (TokenOutput(2, "", "</s>", special=True),), FinishReason.EOS),
]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def folded(call: Any, events: list[GenerationEvent]) -> GenerationResult:
    """The whole result of events."""
    fold = ResultFold(request(call))
    for event in events:
        fold.push(event)
    return fold.result()


MESSAGE_EVENTS = [
    "created", "in_progress", "output_item.added", "content_part.added", *["output_text.delta"] * 6, "output_text.done",
    "content_part.done", "output_item.done", "completed",
]  # fmt: skip


def test_a_text_comes_in_all_its_events() -> None:
    events = streamed(respond(stream=True))
    assert kinds(events) == MESSAGE_EVENTS
    assert "".join(event["delta"] for event in events if event["type"].endswith("delta")) == TEXT
    assert [event["response"]["status"] for event in events if "response" in event] == [
        "in_progress",
        "in_progress",
        "completed",
    ]
    assert events[2]["item"] == {
        "type": "message", "id": f"msg_{HEX}o0", "status": "in_progress", "content": [], "role": "assistant",
    }  # fmt: skip
    done = events[-2]["item"]
    assert (done["status"], done["content"][0]["text"]) == ("completed", TEXT)
    assert events[-1]["response"]["output"] == [done]


@table("route", ["v1", "v3"])
def test_a_whole_answer_is_the_end_of_its_stream(route: Any) -> None:
    whole = answer(respond(route))
    data = stream_bytes(respond(route, stream=True))
    if route == "v3":
        assert data.endswith(b"data: [DONE]\n\n")
        assert b"event: " not in data
        last = json.loads(data.split(b"\n\n")[-3].removeprefix(b"data: "))
    else:
        last = events_of(data)[-1]
    assert last["response"] == whole
    assert whole["usage"] == {
        "input_tokens": 3, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}, "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 10,
    }  # fmt: skip


def test_reasoning_text_and_calls_are_items_of_their_own() -> None:
    events = streamed(respond(stream=True, tools=[TOOL]), THINKING)
    assert kinds(events) == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta", "reasoning_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert {event["output_index"] for event in events if "output_index" in event} == {0, 1, 2, 3}
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[0]["content"] == [{"text": "ab", "type": "reasoning_text"}]
    assert output[0]["summary"] == []
    assert (output[2]["call_id"], output[2]["name"], output[2]["arguments"]) == (
        "call_1",
        "weather",
        '{"city": "Oslo"}',
    )
    assert events[-1]["response"]["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
    assert events[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"] == 1


@table(("route", "body"), [("v3", {}), ("v1", {"reasoning": {"summary": "auto"}})])
def test_reasoning_stands_in_the_summary_s_place(route: Any, body: dict[str, Any]) -> None:
    data = stream_bytes(respond(route, stream=True, tools=[TOOL], **body), THINKING).decode()
    events = [json.loads(line[6:]) for line in data.split("\n") if line.startswith("data: {")]
    assert kinds(events)[2:8] == [
        "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
        "reasoning_summary_text.delta", "reasoning_summary_text.done", "reasoning_summary_part.done",
    ]  # fmt: skip
    item = events[-1]["response"]["output"][0]
    assert (item["summary"], "content" in item) == ([{"text": "ab", "type": "summary_text"}], False)


@table("body", [{}, {"parallel_tool_calls": False}, {"include": ["message.output_text.logprobs"]}])
def test_whole_answers_have_the_items_of_streams(body: dict[str, Any]) -> None:
    call = respond(tools=[TOOL], **body)
    whole = json.loads(call.encoder.full([folded(call, THINKING)]).body)
    last = streamed(respond(tools=[TOOL], stream=True, **body), THINKING)[-1]["response"]
    assert whole == last
    assert len(whole["output"]) == (3 if body.get("parallel_tool_calls") is False else 4)


def test_several_answers_follow_each_other() -> None:
    output = answer(respond(n=2))["output"]
    assert [(item["id"], item["content"][0]["text"]) for item in output] == [
        (f"msg_{HEX}o0", TEXT),
        (f"msg_{HEX}o1", TEXT),
    ]


@table(("route", "reason"), [("v1", "max_output_tokens"), ("v3", "max_tokens")])
def test_an_answer_that_was_cut_is_incomplete(route: Any, reason: str) -> None:
    whole = answer(respond(route, max_output_tokens=2))
    assert (whole["status"], whole["incomplete_details"], whole["completed_at"]) == (
        "incomplete",
        {"reason": reason},
        None,
    )
    assert whole["output"][0]["status"] == "incomplete"
    if route == "v1":
        last = streamed(respond(max_output_tokens=2, stream=True))[-1]
        assert (last["type"], last["response"]) == ("response.incomplete", whole)


def test_an_empty_answer_is_a_message() -> None:
    end = GenerationEvent(0, "", (TokenOutput(2, "", "</s>", special=True),), FinishReason.EOS, prompt=PROMPT)
    events = streamed(respond(stream=True), [end])
    assert kinds(events)[2:-1] == [
        "output_item.added", "content_part.added", "output_text.done", "content_part.done", "output_item.done",
    ]  # fmt: skip


def test_log_probabilities_come_with_the_text() -> None:
    body: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    events = streamed(respond(stream=True, **body))
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [one["token"] for event in deltas for one in event["logprobs"]] == [event["delta"] for event in deltas]
    assert all(len(event["logprobs"][0]["top_logprobs"]) == 2 for event in deltas)
    [part] = events[-1]["response"]["output"][0]["content"]
    assert part["logprobs"] == [one for event in deltas for one in event["logprobs"]]
    assert answer(respond(**body))["output"][0]["content"][0] == part


@table("num_events", [0, 1, 6, 8])
def test_a_failure_ends_a_stream_in_events(num_events: int) -> None:
    call = respond(stream=True, tools=[TOOL])
    data = b"".join(call.encoder.event(0, event) for event in THINKING[:num_events])
    events = events_of(data + (call.encoder.stream_error(EngineFailed("it broke")) or b""))
    assert kinds(events)[:2] == ["created", "in_progress"]
    error, failed = events[-2:]
    assert (error["type"], error["code"], error["message"]) == ("error", "server_error", "it broke")
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": "server_error", "message": "it broke"}
    assert all(item["status"] == "completed" for item in failed["response"]["output"][:-1])


def test_a_cancelled_response_says_so() -> None:
    call = respond(stream=True)
    failed = events_of(call.encoder.stream_error(Cancelled("enough")) or b"")[-1]
    assert failed["response"]["status"] == "cancelled"


@table("kind", ALL_KINDS)
@table("route", ["v1", "v3"])
def test_every_kind_of_failure_is_told_in_a_stream(route: Any, kind: str) -> None:
    last = respond(route, stream=True).encoder.stream_error(CLASSES[kind]("It is so")) or b""
    assert last.count(b"It is so") == 2
