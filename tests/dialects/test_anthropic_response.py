"""What a message's answer looks like: blocks, reasons for its end, counts, and the events of a stream."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from dragoman.server.api import Call
from dragoman.server.apis.anthropic.messages import tool_input
from dragoman.server.generation.service import ResultFold
from dragoman.types import FinishReason, GenerationEvent, GenerationResult, PromptInfo, ToolCallDelta
from tests.dialects.anthropic_calls import WEATHER, ask, events_of
from tests.dialects.openai_calls import token
from tests.support.tables import table

PROMPT = PromptInfo("p", tuple(range(10)), num_cached_tokens=4)


def step(**more: Any) -> GenerationEvent:
    """An event of one token."""
    return GenerationEvent(0, "x", (token("x"),), **more)


def folded(call: Call, events: list[GenerationEvent]) -> GenerationResult:
    fold = ResultFold(call.requests[0])
    for event in events:
        fold.push(event)
    return fold.result()


def whole(events: list[GenerationEvent], **body: Any) -> dict[str, Any]:
    """The whole answer."""
    call = ask(**body)
    reply = call.encoder.full([folded(call, events)])
    assert (reply.status, reply.headers["request-id"]) == (200, "req-1")
    answer: dict[str, Any] = json.loads(reply.body)
    return answer


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events of a stream make, put together as the reference says."""
    message: dict[str, Any] = {}
    open_index: int | None = None
    for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
                assert (message["content"], message["stop_reason"]) == ([], None)
            case "content_block_start":
                assert (open_index, event["index"]) == (None, len(message["content"]))
                open_index = event["index"]
                message["content"].append({**event["content_block"], "json": ""})
            case "content_block_delta":
                assert event["index"] == open_index
                block, delta = message["content"][-1], event["delta"]
                name = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}.get(
                    delta["type"], "json"
                )
                block[name] += delta.get(name, delta.get("partial_json"))
            case "content_block_stop":
                assert event["index"] == open_index
                block = message["content"][-1]
                text = block.pop("json")
                if block["type"] == "tool_use":
                    block["input"] = json.loads(text or "{}")
                open_index = None
            case "message_delta":
                message |= {**event["delta"], "usage": event["usage"]}
            case kind:
                assert kind in ("ping", "message_stop")
    assert open_index is None
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    return message


TEXT = [step(prompt=PROMPT, content="Hello"), step(content=" you"), step(finish_reason=FinishReason.EOS)]
THOUGHT = [
    step(prompt=PROMPT, reasoning="Let me"),
    step(reasoning=" see."),
    step(content="\n\n"),
    step(content="Yes."),
    step(finish_reason=FinishReason.EOS),
]
CALLS = [
    step(prompt=PROMPT, content="\n"),
    step(content="I look."),
    step(tool_calls=(ToolCallDelta(0, "call_1", "get_weather"),)),
    step(tool_calls=(ToolCallDelta(0, arguments='{"city": '),)),
    step(tool_calls=(ToolCallDelta(0, arguments='"Oslo"}'), ToolCallDelta(1, "call_2", "get_weather", "{}"))),
    step(finish_reason=FinishReason.EOS),
]
ONLY_CALL = [
    step(prompt=PROMPT, content="\n"),
    step(tool_calls=(ToolCallDelta(0, "call_1", "now"),)),
    step(finish_reason=FinishReason.EOS),
]
SPACE = [step(prompt=PROMPT, content="\n"), step(content=" ", finish_reason=FinishReason.EOS)]
NOTHING = [step(prompt=PROMPT, finish_reason=FinishReason.EOS)]
CASES = {"text": TEXT, "thought": THOUGHT, "calls": CALLS, "only": ONLY_CALL, "space": SPACE, "nothing": NOTHING}


@table("omits", [False, True])
@table("name", CASES)
def test_a_stream_makes_the_message_that_is_answered_whole(name: str, omits: bool) -> None:
    body: dict[str, Any] = {
        "thinking": {"type": "adaptive", "display": "omitted" if omits else "summarized"},
        "tools": [WEATHER],
    }
    assert joined(events_of(ask(**body, stream=True), CASES[name])) == whole(CASES[name], **body)


def test_the_blocks_are_thinking_text_and_tool_use() -> None:
    thinking, text = whole(THOUGHT)["content"]
    assert (thinking["thinking"], text) == ("Let me see.", {"type": "text", "text": "\n\nYes."})
    assert thinking["signature"]
    answer = whole(CALLS)
    assert answer["content"] == [
        {"type": "text", "text": "\nI look."},
        {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Oslo"}},
        {"type": "tool_use", "id": "call_2", "name": "get_weather", "input": {}},
    ]
    assert answer["stop_reason"] == "tool_use"
    assert whole(ONLY_CALL)["content"] == [{"type": "tool_use", "id": "call_1", "name": "now", "input": {}}]
    assert whole(SPACE)["content"] == [{"type": "text", "text": "\n "}]


def test_thoughts_may_be_left_out_of_the_answer() -> None:
    thinking = whole(THOUGHT, thinking={"type": "adaptive", "display": "omitted"})["content"][0]
    assert (thinking["thinking"], thinking["signature"]) == ("", whole(THOUGHT)["content"][0]["signature"])


def test_one_tool_at_a_time_if_that_is_wished() -> None:
    body: dict[str, Any] = {"tools": [WEATHER], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    for answer in (whole(CALLS, **body), joined(events_of(ask(**body, stream=True), CALLS))):
        assert [block["id"] for block in answer["content"] if block["type"] == "tool_use"] == ["call_1"]


@table(
    ("reason", "match", "max_tokens", "said"),
    [
        (FinishReason.EOS, None, 9, ("end_turn", None)),
        (FinishReason.STOP_TOKEN, 7, 9, ("end_turn", None)),
        (FinishReason.STOP_STRING, "END", 9, ("stop_sequence", "END")),
        (FinishReason.LENGTH, None, 1, ("max_tokens", None)),
        (FinishReason.LENGTH, None, 9, ("model_context_window_exceeded", None)),
        (FinishReason.ABORT, None, 9, ("max_tokens", None)),
    ],
)
def test_the_answer_says_why_it_ended(reason: FinishReason, match: Any, max_tokens: int, said: tuple[str, Any]) -> None:
    events = [step(prompt=PROMPT, content="a", finish_reason=reason, stop_match=match)]
    for answer in (
        whole(events, max_tokens=max_tokens),
        joined(events_of(ask(max_tokens=max_tokens, stream=True), events)),
    ):
        assert (answer["stop_reason"], answer["stop_sequence"]) == said


def test_a_call_that_was_cut_is_no_call() -> None:
    events = [
        step(prompt=PROMPT, tool_calls=(ToolCallDelta(0, "c", "f", '{"a": '),), finish_reason=FinishReason.LENGTH)
    ]
    answer = whole(events, max_tokens=1)
    assert answer["stop_reason"] == "max_tokens"
    assert answer["content"] == [{"type": "tool_use", "id": "c", "name": "f", "input": {"INVALID_JSON": '{"a": '}}]


def test_tokens_of_the_cache_are_told_apart() -> None:
    usage = {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 3,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "service_tier": "standard",
    }
    assert whole(TEXT)["usage"] == usage
    events = events_of(ask(stream=True), TEXT)
    assert events[0]["message"]["usage"] == {**usage, "output_tokens": 1}
    assert events[-2]["usage"] == usage


def test_tokens_of_the_cache_that_are_known_later_count_as_well() -> None:
    events = [
        step(prompt=PromptInfo("p", (1, 2, 3)), content="a"),
        step(num_cached_tokens=2, finish_reason=FinishReason.EOS),
    ]
    for answer in (whole(events), joined(events_of(ask(stream=True), events))):
        assert (answer["usage"]["input_tokens"], answer["usage"]["cache_read_input_tokens"]) == (1, 2)


@table(
    ("arguments", "told"),
    [
        ("", {}),
        (' {"b": 1, "a": 2} ', {"b": 1, "a": 2}),
        ("[1]", {"INVALID_JSON": "[1]"}),
        ('{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
        ('{"a"', {"INVALID_JSON": '{"a"'}),
    ],
)
def test_an_input_is_always_an_object(arguments: str, told: Any) -> None:
    assert json.loads(msgspec.json.encode(tool_input(arguments))) == told


def test_the_model_is_called_as_the_client_calls_it() -> None:
    assert whole(TEXT, model="my-model")["model"] == "my-model"
    assert whole(TEXT, model="default")["model"] == whole(TEXT)["model"] == "served-model"
