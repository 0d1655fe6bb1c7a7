"""What bodies of Responses become: conversations, tools, grammars, limits; and what is refused, by which name."""

from __future__ import annotations

import json
from typing import Any

from dragoman.errors import EngineFailed
from dragoman.server.apis.responses.request import ResponsesBody
from dragoman.types import Grammar
from tests.dialects.openai_calls import SERVED, http_call, refusal, request, sampling
from tests.dialects.responses_calls import TOOL, events_of, messages, prompt, respond, responses
from tests.support.tables import table

USER = {"role": "user", "content": "Hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
PNG = "data:image/png;base64,iVBORw0KGgo"
TOLD_CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
FORM = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}


def test_a_text_is_what_the_user_says() -> None:
    assert list(prompt(respond(input="Hi")).messages) == [USER]


CONVERSATIONS: list[tuple[str, list[Any], dict[str, Any], list[Any]]] = [
    ("typed", [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}], {}, [USER]),
    ("two parts", [{"role": "user", "content": [{"type": "input_text", "text": one} for one in "ab"]}], {},
     [{"role": "user", "content": "a\nb"}]),
    ("instructions", [USER], {"instructions": "Be brief."}, [{"role": "system", "content": "Be brief."}, USER]),
    ("instructions and a developer", [{"role": "developer", "content": "In verse."}, USER], {"instructions": "Be brief."},
     [{"role": "system", "content": "Be brief.\n\nIn verse."}, USER]),
    ("an answer", [USER, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yo"}]}, USER],
     {}, [USER, {"role": "assistant", "content": "Yo"}, USER]),
    ("a refusal", [USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No"}]}], {},
     [USER, {"role": "assistant", "content": "No"}]),
    ("a call and its output", [USER, CALL, OUTPUT], {},
     [USER, {"role": "assistant", "content": "", "tool_calls": [TOLD_CALL]},
      {"role": "tool", "content": "rain", "tool_call_id": "c1"}]),
    ("an output of parts", [USER, CALL, {**OUTPUT, "output": [{"type": "input_text", "text": "sun"}]}], {},
     [USER, {"role": "assistant", "content": "", "tool_calls": [TOLD_CALL]},
      {"role": "tool", "content": "sun", "tool_call_id": "c1"}]),
    ("one turn", [USER, {"type": "reasoning", "id": "rs_1", "summary": [],
                         "content": [{"type": "reasoning_text", "text": "hm"}]},
                  {"role": "assistant", "content": "Look:"}, CALL, {**CALL, "call_id": "c2"}], {},
     [USER, {"role": "assistant", "content": "Look:", "reasoning_content": "hm",
             "tool_calls": [TOLD_CALL, {**TOLD_CALL, "id": "c2"}]}]),
    ("a summary", [USER, {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
                   {"role": "assistant", "content": "Yo"}], {},
     [USER, {"role": "assistant", "content": "Yo", "reasoning_content": "hm"}]),
    ("a picture", [{"role": "user", "content": [{"type": "input_text", "text": "What?"},
                                                {"type": "input_image", "image_url": PNG, "detail": "low"}]}], {},
     [{"role": "user", "content": [{"type": "text", "text": "What?"},
                                   {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}]}]),
]  # fmt: skip


@table(("items", "body", "expected"), [one[1:] for one in CONVERSATIONS], ids=[c[0] for c in CONVERSATIONS])
def test_items_become_messages(items: list[Any], body: dict[str, Any], expected: list[Any]) -> None:
    assert messages(items, **body) == expected


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": [5]}, "input[0]"),
    ({"input": [{"content": "a"}]}, "input[0].role"),
    ({"input": [{"role": "king", "content": "a"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": []}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": [{"text": "a"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "song"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input[0].content[0].file_id"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].image_url"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "ftp://x"}]}]},
     "input[0].content[0].image_url"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": PNG, "detail": "x"}]}]},
     "input[0].content[0].detail"),
    ({"input": [USER, {"type": "web_search_call", "id": "ws"}]}, "input[1].type"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "x"}]}, "input[0].output"),
    ({"input": [{"type": "item_reference"}]}, "input[0].id"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
    ({"background": True, "store": False}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"context_management": []}, "context_management"),
    ({"moderation": {}}, "moderation"),
    ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"truncation": "middle"}, "truncation"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_tool_calls": 0}, "max_tool_calls"),
    ({"temperature": 3}, "temperature"),
    ({"top_p": -1}, "top_p"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"include": ["file_search_call.results"]}, "include[0]"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ({"metadata": {"a" * 65: ""}}, "metadata"),
    ({"metadata": {"a": "b" * 513}}, "metadata"),
    ({"reasoning": {"effort": "giant"}}, "reasoning.effort"),
    ({"reasoning": {"summary": "short"}}, "reasoning.summary"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "thing"}}}}, "text.format.schema"),
    ({"text": {"format": {"type": "text"}}, "response_format": {"type": "text"}}, "response_format"),
    ({"text": {"format": {"type": "json_object"}}, "guided_regex": "a+"}, "guided_regex"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{**TOOL, "parameters": 5}]}, "tools[0].parameters"),
    ({"tools": [{**TOOL, "parameters": {"type": "thing"}}]}, "tools[0].parameters"),
    ({"tools": [{**TOOL, "strict": "very"}]}, "tools[0].strict"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "perhaps", "tools": [TOOL]}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "other"}, "tools": [TOOL]}, "tool_choice.name"),
    ({"tool_choice": {"type": "file_search"}, "tools": [TOOL]}, "tool_choice.type"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "all", "tools": []}, "tools": [TOOL]}, "tool_choice.mode"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}, "tools": [TOOL]}, "tool_choice.tools"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]},
      "tools": [TOOL]}, "tool_choice.tools[0].name"),
]  # fmt: skip


@table(("body", "param"), REFUSED, ids=lambda one: json.dumps(one)[:60])
@table("route", ["v1", "v3"])
def test_what_is_wrong_or_not_offered_is_refused_by_name(route: Any, body: dict[str, Any], param: str) -> None:
    told = refusal(responses(route), http_call({"model": SERVED, "input": "a", **body}))
    assert (told.status, told.param) == (400, param)
    assert "\n" not in told.message
    shown = told.body["error"]
    assert shown == told.message if route == "v3" else (shown["message"], shown["param"]) == (told.message, param)


@table(
    ("body", "text"),
    [
        ({"input": None}, "input missing in request"),
        ({"input": ""}, "input cannot be empty"),
        ({"input": []}, "Messages array cannot be empty"),
        ({"input": 5}, "input is not a string or array"),
        ({"input": [5]}, "input array items must be objects"),
        ({"input": [{"content": "a"}]}, "input item role is missing or invalid"),
        ({"input": [{"role": "user"}]}, "input item content is missing"),
        ({"input": [{"role": "user", "content": []}]}, "Invalid message structure - content array is empty"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input_text requires a valid text field"),
        ({"input": [{"role": "user", "content": [{"type": "x"}]}]},
         "Unsupported content type. Supported types are input_text and input_image."),
        ({"stream": True, "stream_options": {"include_usage": True}},
         "stream_options is not supported in Responses API. Usage statistics are always included in the response."),
        ({"stream": True, "logprobs": True}, "logprobs are not supported in streaming mode."),
        ({"max_output_tokens": 0}, "max_output_tokens value should be greater than 0"),
        ({"max_output_tokens": "a"}, "max_output_tokens is not an unsigned integer"),
        ({"reasoning": {"effort": "minimal"}}, "reasoning.effort must be one of: low, medium, high"),
        ({"reasoning": "low"}, "reasoning is not an object"),
        ({"temperature": 9}, "temperature out of range(0.0, 2.0)"),
    ],
)  # fmt: skip
def test_openvino_model_server_s_texts(body: dict[str, Any], text: str) -> None:
    told = refusal(responses("v3"), http_call({"model": SERVED, "input": "a", **body}))
    assert (told.status, told.body) == (400, {"error": text})


def test_a_model_has_to_be_named_on_v3() -> None:
    assert refusal(responses("v3"), http_call({"input": "a"})).status == 412


def test_every_parameter_may_be_null() -> None:
    nothing: dict[str, Any] = dict.fromkeys((*ResponsesBody.__struct_fields__, "conversation", "prompt"))
    call = respond(**{**nothing, "input": "Hi"})
    assert (call.ignored, call.stream, list(prompt(call).messages)) == ((), False, [USER])


def test_limits_and_sampling_are_those_of_the_body() -> None:
    call = respond(max_output_tokens=7, temperature=0.5, top_p=0.25, seed=3, stop="x", top_k=4)
    chosen = sampling(call)
    assert (request(call).max_tokens, request(call).on_overflow, request(call).stop) == (7, "refuse", ("x",))
    assert (chosen.temperature, chosen.top_p, chosen.seed, chosen.top_k) == (0.5, 0.25, 3, 4)
    assert (request(respond()).max_tokens, request(respond()).on_overflow) == (None, "clip")


@table("route", ["v1", "v3"])
@table("is_nested", [False, True])
def test_a_tool_may_be_flat_or_nested(route: Any, is_nested: bool) -> None:
    function = {name: value for name, value in TOOL.items() if name != "type"}
    tool = {"type": "function", "function": function} if is_nested else TOOL
    call = respond(route, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    assert prompt(call).tools == ({"type": "function", "function": function},)
    assert (request(call).tool_choice, request(call).parse_tool_calls) == ("required", True)
    assert request(call).parallel_tool_calls is False
    if route == "v1":
        assert answer_told(call)["tools"] == [{**TOOL, "description": None}]


OTHER = {**TOOL, "name": "other"}


@table(
    ("choice", "names", "wish"),
    [
        (None, ["weather", "other"], "auto"),
        ("none", [], "none"),
        ({"type": "function", "name": "other"}, ["weather", "other"], "other"),
        ({"type": "function", "function": {"name": "other"}}, ["weather", "other"], "other"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]},
            ["other"],
            "required",
        ),
    ],
)
def test_the_wish_about_tools(choice: Any, names: list[str], wish: str) -> None:
    call = respond(tools=[TOOL, OTHER], tool_choice=choice)
    assert [tool["function"]["name"] for tool in prompt(call).tools] == names
    assert (request(call).called_tool or request(call).tool_choice) == wish
    assert answer_told(call)["tool_choice"] == (choice or "auto")


@table(
    ("body", "grammar"),
    [
        ({"text": {"format": {"type": "text"}}}, None),
        ({"text": {"format": {"type": "json_object"}}}, Grammar("json_object")),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}}},
         Grammar("json_schema", '{"type":"object"}')),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}},
         Grammar("json_schema", '{"type":"object"}')),
        ({"guided_regex": "a+"}, Grammar("regex", "a+")),
    ],
)  # fmt: skip
@table("route", ["v1", "v3"])
def test_structured_outputs_are_grammars(route: Any, body: dict[str, Any], grammar: Grammar | None) -> None:
    assert sampling(respond(route, **body)).grammar == grammar


@table(
    ("body", "told"),
    [
        ({}, {"type": "text"}),
        ({"text": {"format": {"type": "json_object"}}}, {"type": "json_object"}),
        ({"text": {"format": FORM}}, {**FORM, "description": None, "strict": False}),
        ({"text": {"format": {**FORM, "description": "b", "strict": True}}}, {**FORM, "description": "b", "strict": True}),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}},
         {**FORM, "description": None, "strict": False}),
    ],
)  # fmt: skip
def test_the_format_is_told_back_with_what_was_left_out(body: dict[str, Any], told: dict[str, Any]) -> None:
    assert answer_told(respond(**body))["text"]["format"] == told


def test_the_verbosity_is_told_back() -> None:
    assert answer_told(respond(text={"verbosity": "low"}))["text"] == {"format": {"type": "text"}, "verbosity": "low"}


@table(
    ("effort", "kwargs"),
    [
        ("high", {"reasoning_effort": "high", "enable_thinking": True, "thinking": True}),
        ("none", {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}),
    ],
)
def test_the_effort_reaches_the_template(effort: str, kwargs: dict[str, Any]) -> None:
    assert prompt(respond(reasoning={"effort": effort})).template_kwargs == kwargs
    own = respond(reasoning={"effort": effort}, chat_template_kwargs={"enable_thinking": None, "x": 1})
    assert prompt(own).template_kwargs == {**kwargs, "enable_thinking": None, "x": 1}


@table(
    ("body", "top_n"),
    [
        ({}, None),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, 3),
        ({"logprobs": True, "top_logprobs": 2}, 2),
        ({"top_logprobs": 2}, None),
    ],
)
def test_log_probabilities_are_included_where_asked_for(body: dict[str, Any], top_n: int | None) -> None:
    assert sampling(respond(**body)).logprobs == top_n


@table(
    ("body", "ignored"),
    [
        ({"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "service_tier": "auto"},
         {"user", "safety_identifier", "prompt_cache_key", "service_tier"}),
        ({"prompt_cache_retention": "24h", "prompt_cache_options": {"ttl": "30m", "prewarm": True}},
         {"prompt_cache_retention", "prompt_cache_options.ttl", "prompt_cache_options.prewarm"}),
        ({"max_tool_calls": 2}, {"max_tool_calls"}),
        ({"text": {"verbosity": "low"}}, {"text.verbosity"}),
        ({"include": ["reasoning.encrypted_content"]}, {"include[reasoning.encrypted_content]"}),
        ({"top_logprobs": 2}, {"top_logprobs"}),
        ({"stream": True, "stream_options": {"include_obfuscation": False}}, {"stream_options.include_obfuscation"}),
        ({"colour": "red", "background": False}, {"colour"}),
        ({"text": {"tone": "dry"}, "reasoning": {"effort": "low", "mode": "x"}}, {"text.tone", "reasoning.mode"}),
        ({"tools": [{"type": "function", "name": "f", "defer_loading": True}]}, {"tools.defer_loading"}),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True, "colour": 1}}]}, {"tools.colour"}),
        ({"store": False, "metadata": {"a": "b"}, "truncation": "disabled"}, set()),
        ({"input": [USER, {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x"}, USER]},
         {"input[1].encrypted_content"}),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_named(body: dict[str, Any], ignored: set[str]) -> None:
    call = respond(**body)
    assert set(call.ignored) == ignored


def answer_told(call: Any) -> dict[str, Any]:
    """The response of a call, as it begins."""
    response: dict[str, Any] = events_of(call.encoder.stream_error(EngineFailed("it broke")))[0]["response"]
    return response


def test_what_was_asked_for_is_told_back() -> None:
    told = answer_told(
        respond(
            instructions="I", max_output_tokens=5, metadata={"a": "b"}, user="u", store=False, truncation="auto",
            reasoning={"effort": "low", "summary": "auto"}, parallel_tool_calls=False, temperature=0.5, top_p=0.5,
            presence_penalty=0.25, frequency_penalty=-1,
        )
    )  # fmt: skip
    expected = {
        "status": "in_progress", "instructions": "I", "max_output_tokens": 5, "metadata": {"a": "b"}, "user": "u",
        "store": False, "truncation": "auto", "reasoning": {"effort": "low", "summary": "auto"},
        "parallel_tool_calls": False, "temperature": 0.5, "top_p": 0.5, "background": False, "model": SERVED,
        "previous_response_id": None, "service_tier": "default", "object": "response", "error": None, "output": [],
        "presence_penalty": 0.25, "frequency_penalty": -1.0,
    }  # fmt: skip
    assert {name: told[name] for name in expected} == expected
