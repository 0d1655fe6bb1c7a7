"""`functions` and `function_call`, the form of tool calls that OpenAI's first clients know: the same tools, one call."""

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
WEATHER = {"name": "weather", "description": "Tells", "parameters": {"type": "object", "properties": {}}}
TIME = {"name": "time"}


def prompt_of(call: Call) -> ChatPrompt:
    """What the template gets."""
    prompt = request(call).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


@table("route", ROUTES)
@table(
    ("wish", "choice", "is_parsed"),
    [(None, "auto", True), ("auto", "auto", True), ("none", "none", False), ({"name": "weather"}, "weather", True)],
)
def test_functions_are_tools_of_which_one_may_be_called(route: str, wish: Any, choice: str, is_parsed: bool) -> None:
    call = chat(route, functions=[WEATHER, TIME], function_call=wish)
    asked = request(call)
    assert (asked.called_tool or asked.tool_choice, asked.parse_tool_calls) == (choice, is_parsed)
    assert not asked.parallel_tool_calls
    tools = tuple({"type": "function", "function": function} for function in (WEATHER, TIME))
    assert prompt_of(call).tools == (() if wish == "none" else tools)
    assert call.ignored == ()


@table("wish", [None, "none", "auto"])
def test_without_functions_there_is_nothing_to_wish(wish: str | None) -> None:
    assert request(chat(function_call=wish)).tool_choice is None


@table(
    ("body", "param"),
    [
        ({"functions": [{"name": "a b"}]}, "functions[0].name"),
        ({"functions": [TIME, {"name": "f", "parameters": {"type": "x"}}]}, "functions[1].parameters"),
        ({"functions": [{}]}, "functions[0].name"),
        ({"functions": 5}, "functions"),
        ({"functions": [TIME], "function_call": "required"}, "function_call"),
        ({"functions": [TIME], "function_call": {"name": "other"}}, "function_call.name"),
        ({"function_call": {"name": "time"}}, "function_call.name"),
        ({"functions": [TIME], "tools": [{"type": "function", "function": TIME}]}, "functions"),
        ({"functions": [TIME], "tool_choice": "auto"}, "functions"),
        ({"function_call": "auto", "tools": [{"type": "function", "function": TIME}]}, "function_call"),
    ],
)
def test_functions_that_make_no_sense_are_refused_by_name(body: dict[str, Any], param: str) -> None:
    answer = refusal(chats(chat_format="openai"), http_call({"messages": [{"role": "user", "content": "x"}], **body}))
    assert (answer.status, answer.param) == (400, param)


def test_calls_and_results_of_earlier_turns_reach_the_template_as_those_of_tools() -> None:
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
        {"role": "function", "name": "weather", "content": "rain"},
        {"role": "assistant", "function_call": {"name": "time", "arguments": "{}"}},
        {"role": "function", "name": "time", "content": "noon"},
    ]
    assert prompt_of(chat(messages=messages, functions=[WEATHER, TIME])).messages == (
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "call00001",
                    "type": "function",
                    "function": {"name": "weather", "arguments": {"city": "Oslo"}},
                }
            ],
        },
        {"role": "tool", "content": "rain", "name": "weather", "tool_call_id": "call00001"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call00003", "type": "function", "function": {"name": "time", "arguments": {}}}],
        },
        {"role": "tool", "content": "noon", "name": "time", "tool_call_id": "call00003"},
    )


def test_a_result_without_its_call_is_still_one() -> None:
    messages = [{"role": "function", "name": "f", "content": "1"}]
    assert prompt_of(chat(messages=messages)).messages == ({"role": "tool", "content": "1", "name": "f"},)


def choice_of(
    call: Call, *tools: ToolCall, content: str = "", reason: FinishReason = FinishReason.EOS
) -> dict[str, Any]:
    """The only choice of a whole answer."""
    sequence = SequenceResult(0, content, (token("x"),), reason, content=content, tool_calls=tools)
    reply = call.encoder.full([GenerationResult(request(call), PromptInfo("p", (1,)), (sequence,))])
    parsed: dict[str, Any] = json.loads(reply.body)["choices"][0]
    return parsed


@table("route", ROUTES)
def test_the_call_is_answered_as_a_function_call(route: str) -> None:
    made = ToolCall("id1", "weather", '{"city": "Oslo"}')
    choice = choice_of(chat(route, functions=[WEATHER]), made, ToolCall("id2", "time", "{}"))
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "weather", "arguments": '{"city": "Oslo"}'},
    }
    assert choice["finish_reason"] == "function_call"


def test_an_answer_that_calls_nothing_is_like_any_other() -> None:
    choice = choice_of(chat(functions=[WEATHER]), content="Hi")
    assert choice["message"] == {"role": "assistant", "content": "Hi"}
    assert choice["finish_reason"] == "stop"


def test_a_call_that_was_cut_short_ends_with_length() -> None:
    made = ToolCall("id1", "weather", '{"ci')
    assert choice_of(chat(functions=[WEATHER]), made, reason=FinishReason.LENGTH)["finish_reason"] == "length"


@table("route", ROUTES)
def test_the_call_streams_name_first_and_arguments_in_pieces(route: str) -> None:
    events = [
        GenerationEvent(0, "", (token("a"),), tool_calls=(ToolCallDelta(0, "id1", "weather", ""),)),
        GenerationEvent(0, "", (token("b"),), tool_calls=tuple(ToolCallDelta(0, arguments=one) for one in ("{", '"c'))),
        GenerationEvent(0, "", (token("c"),), tool_calls=(ToolCallDelta(1, "id2", "time", "{}"),)),
        GenerationEvent(0, "", (token("d"),), tool_calls=(ToolCallDelta(0, arguments='": 1}'),)),
        GenerationEvent(0, "", (token(""),), FinishReason.EOS),
    ]
    choices = [one["choices"][0] for one in chunks(chat(route, functions=[WEATHER, TIME], stream=True), events)]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "function_call": {"name": "weather", "arguments": ""}},
        {"function_call": {"arguments": '{"c'}},
        {"function_call": {"arguments": '": 1}'}},
        {"content": ""},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "function_call"]
