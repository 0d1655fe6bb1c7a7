"""Tool calls: what the template and the service learn of them, and how they come back, whole and in pieces."""

from __future__ import annotations

import json
from typing import Any

from dragoman.server.api import Call
from dragoman.types import (
    ChatPrompt,
    FinishReason,
    GenerationEvent,
    GenerationResult,
    PromptInfo,
    SequenceResult,
    ToolCall,
    ToolCallDelta,
)
from tests.dialects.openai_calls import chat, chats, chunks, http_call, refusal, request, token
from tests.support.tables import table

ROUTES = ("v1", "v3", "invocations")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tells", "parameters": SCHEMA}}
TIME = {"type": "function", "function": {"name": "time"}}
NAMED = {"type": "function", "function": {"name": "weather"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}


def tools_seen(call: Call) -> tuple[Any, ...]:
    """The tools the template gets."""
    prompt = request(call).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt.tools


@table("route", ROUTES)
@table(
    ("choice", "wish", "is_parsed"),
    [
        (None, "auto", True),
        ("auto", "auto", True),
        ("none", "none", False),
        ("required", "required", True),
        (NAMED, "weather", True),
    ],
)
def test_tool_choice_becomes_a_wish_for_the_service(route: str, choice: Any, wish: str, is_parsed: bool) -> None:
    asked = request(chat(route, tools=[WEATHER, TIME], tool_choice=choice))
    assert (asked.called_tool or asked.tool_choice, asked.parse_tool_calls) == (wish, is_parsed)


@table("route", ROUTES)
@table(("mode", "wish"), [("auto", "auto"), ("required", "required")])
def test_allowed_tools_leave_only_these(route: str, mode: str, wish: str) -> None:
    choice = ALLOWED | {"allowed_tools": {"mode": mode, "tools": [NAMED]}}
    call = chat(route, tools=[WEATHER, TIME], tool_choice=choice)
    assert [tool["function"]["name"] for tool in tools_seen(call)] == ["weather"]
    assert request(call).tool_choice == wish


@table("name", ["auto", "none", "required", "weather"])
def test_a_tool_may_be_called_like_a_choice(name: str) -> None:
    tools = [WEATHER, {"type": "function", "function": {"name": name}}]
    asked = request(chat(tools=tools, tool_choice={"type": "function", "function": {"name": name}}))
    assert (asked.tool_choice, asked.called_tool) == ("named", name)
    legacy = request(chat(functions=[tool["function"] for tool in tools], function_call={"name": name}))
    assert (legacy.tool_choice, legacy.called_tool) == ("named", name)
    word = request(chat(tools=tools, tool_choice=name))
    assert (word.tool_choice, word.called_tool) == ((name, "") if name != "weather" else ("named", "weather"))


@table("choice", [None, "auto", "none"])
def test_without_tools_there_is_no_wish(choice: str | None) -> None:
    empty: list[Any] = []
    for tools in (None, empty):
        asked = request(chat(tools=tools, tool_choice=choice))
        assert (asked.tool_choice, asked.parse_tool_calls) == (None, False)


def test_the_template_sees_the_tools_as_they_were_sent_without_nulls() -> None:
    extra = {"type": "function", "function": {"name": "x", "description": None, "strict": True, "vendor": 1}}
    seen = tools_seen(chat(tools=[WEATHER, extra]))
    assert seen == (WEATHER, {"type": "function", "function": {"name": "x", "strict": True, "vendor": 1}})


def test_the_template_sees_no_tools_if_none_may_be_called() -> None:
    assert tools_seen(chat(tools=[WEATHER], tool_choice="none")) == ()


def test_a_whole_conversation_with_tool_results_reaches_the_template() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        {"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "4 degrees"},
    ]
    prompt = request(chat(messages=messages, tools=[WEATHER])).prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo"}
    assert prompt.messages[2] == messages[2]


@table(
    ("body", "param"),
    [
        ({"tools": [{"type": "search", "function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TIME, {"type": "custom", "custom": {"name": "f"}}]}, "tools[1].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "two words"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "objekt"}}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [TIME], "tool_choice": NAMED}, "tool_choice.function.name"),
        ({"tools": [TIME], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [TIME], "tool_choice": ALLOWED | {"allowed_tools": None}}, "tool_choice.allowed_tools.mode"),
        (
            {"tools": [TIME], "tool_choice": ALLOWED | {"allowed_tools": {"mode": "auto", "tools": []}}},
            "tool_choice.allowed_tools.tools",
        ),
        ({"tools": [TIME], "tool_choice": ALLOWED}, "tool_choice.allowed_tools.tools[0].name"),
        ({"tools": [TIME], "tool_choice": "must"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_tools_that_make_no_sense_are_refused_by_name(body: dict[str, Any], param: str) -> None:
    answer = refusal(chats("v1", chat_format="openai"), http_call({"messages": [{"role": "user"}], **body}))
    assert (answer.status, answer.param) == (400, param)
    assert answer.message.startswith(param)


# --- answers ----------------------------------------------------------------------------------------------------------

CALLS = (ToolCall("call_1", "weather", '{"city": "Oslo"}'), ToolCall("call_2", "time", "{}"))


def whole(call: Call, *, content: str = "", reason: FinishReason = FinishReason.EOS) -> dict[str, Any]:
    """The only choice of an answer with two tool calls."""
    sequence = SequenceResult(0, "raw", (token("raw"),), reason, content=content, reasoning="hm", tool_calls=CALLS)
    result = GenerationResult(request(call), PromptInfo("x", (1,)), (sequence,))
    choice: dict[str, Any] = json.loads(call.encoder.full([result]).body)["choices"][0]
    return choice


@table("route", ROUTES)
def test_a_message_with_tool_calls_has_null_content_and_the_finish_reason_tool_calls(route: str) -> None:
    choice = whole(chat(route, tools=[WEATHER, TIME]))
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "reasoning": "hm",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
            {"id": "call_2", "type": "function", "function": {"name": "time", "arguments": "{}"}},
        ],
    }


def test_text_beside_tool_calls_is_kept() -> None:
    assert whole(chat(tools=[WEATHER]), content="Let me see.")["message"]["content"] == "Let me see."


def test_a_tool_call_that_was_cut_short_ends_with_length() -> None:
    assert whole(chat(tools=[WEATHER]), reason=FinishReason.LENGTH)["finish_reason"] == "length"


def test_without_parallel_tool_calls_only_the_first_is_answered() -> None:
    calls = whole(chat(tools=[WEATHER, TIME], parallel_tool_calls=False))["message"]["tool_calls"]
    assert [call["id"] for call in calls] == ["call_1"]


def piece(*deltas: ToolCallDelta, reason: FinishReason | None = None, index: int = 0) -> GenerationEvent:
    """An event that adds to tool calls and to no text."""
    return GenerationEvent(index, "raw", (token("raw"),), reason, tool_calls=deltas)


PIECES = [
    piece(ToolCallDelta(0, "call_1", "weather")),
    piece(ToolCallDelta(0, arguments='{"city": ')),
    piece(ToolCallDelta(0, arguments='"Oslo"}'), ToolCallDelta(1, "call_2", "time", "{}")),
    piece(reason=FinishReason.EOS),
]


@table("route", ROUTES)
def test_tool_calls_stream_name_first_and_arguments_in_pieces(route: str) -> None:
    parts = [chunk["choices"][0] for chunk in chunks(chat(route, tools=[WEATHER, TIME], stream=True), PIECES)]
    begun = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    assert parts[0]["delta"] == {"role": "assistant", "tool_calls": [begun]}
    assert parts[1]["delta"] == {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]}
    assert [call["index"] for call in parts[2]["delta"]["tool_calls"]] == [0, 1]
    assert [part["finish_reason"] for part in parts] == [None, None, None, "tool_calls"]


def test_streamed_pieces_add_up_to_the_whole_calls() -> None:
    joined: dict[int, dict[str, str]] = {}
    for chunk in chunks(chat(tools=[WEATHER, TIME], stream=True), PIECES):
        for call in chunk["choices"][0]["delta"].get("tool_calls", []):
            entry = joined.setdefault(call["index"], {"arguments": ""})
            entry["name"] = call["function"].get("name", entry.get("name"))
            entry["arguments"] += call["function"]["arguments"]
    assert joined == {
        0: {"name": "weather", "arguments": '{"city": "Oslo"}'},
        1: {"name": "time", "arguments": "{}"},
    }


def test_without_parallel_tool_calls_only_the_first_is_streamed() -> None:
    call = chat(tools=[WEATHER, TIME], stream=True, parallel_tool_calls=False)
    indices = [
        piece["index"] for chunk in chunks(call, PIECES) for piece in chunk["choices"][0]["delta"].get("tool_calls", [])
    ]
    assert indices == [0, 0, 0]


def test_only_the_choice_that_called_a_tool_finishes_with_tool_calls() -> None:
    events = [
        piece(ToolCallDelta(0, "call_1", "time", "{}"), index=0),
        GenerationEvent(1, "no", (token("no"),), FinishReason.EOS, content="no"),
        piece(reason=FinishReason.EOS, index=0),
    ]
    parts = [chunk["choices"][0] for chunk in chunks(chat(tools=[TIME], n=2, stream=True), events)]
    assert [(part["index"], part["finish_reason"]) for part in parts] == [(0, None), (1, "stop"), (0, "tool_calls")]
