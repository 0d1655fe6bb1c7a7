"""`/v3` refuses with OpenVINO Model Server's own words; every text of its checks that still applies has a row here."""

from __future__ import annotations

import json
from typing import Any

from dragoman.errors import CapacityError
from dragoman.server.api import Dialect
from dragoman.types import Limits
from tests.dialects.openai_calls import chats, completions, http_call, refusal
from tests.support.tables import table

_TOO_MANY_STOPS = ["x"] * 17
_UINT32 = 4294967295

# Source: OVMS, openai_completions.cpp at 7e4df0c7 and, for limits of the documented version, at v2025.0.
SHARED: list[tuple[dict[str, Any], str]] = [
    ({"stream_options": {"include_usage": True}}, "stream_options provided, but stream not set to true"),
    ({"stream": True, "stream_options": 1}, "stream_options is not an object"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage is not a boolean"),
    ({"ignore_eos": 1}, "ignore_eos accepts values true or false"),
    ({"ignore_eos": True, "max_tokens": 4001}, "when ignore_eos is true max_tokens can not be greater than 4000"),
    ({"max_tokens": -1}, "max_tokens is not an unsigned integer"),
    ({"max_tokens": "5"}, "max_tokens is not an unsigned integer"),
    ({"max_tokens": 5.5}, "max_tokens is not an unsigned integer"),
    ({"max_tokens": True}, "max_tokens is not an unsigned integer"),
    ({"max_tokens": _UINT32 + 1}, "max_tokens value can't be greater than 4294967295"),
    ({"frequency_penalty": "a"}, "frequency_penalty is not a valid number"),
    ({"frequency_penalty": 2.1}, "frequency_penalty out of range(-2.0, 2.0)"),
    ({"frequency_penalty": -2.1}, "frequency_penalty out of range(-2.0, 2.0)"),
    ({"presence_penalty": []}, "presence_penalty is not a valid number"),
    ({"presence_penalty": 2.1}, "presence_penalty out of range(-2.0, 2.0)"),
    ({"presence_penalty": -2.1}, "presence_penalty out of range(-2.0, 2.0)"),
    ({"repetition_penalty": True}, "repetition_penalty is not a valid number"),
    ({"length_penalty": "a"}, "length_penalty is not a valid number"),
    ({"diversity_penalty": "a"}, "diversity_penalty is not a valid number"),
    ({"temperature": "a"}, "temperature is not a valid number"),
    ({"temperature": 2.1}, "temperature out of range(0.0, 2.0)"),
    ({"temperature": -0.1}, "temperature out of range(0.0, 2.0)"),
    ({"top_p": "a"}, "top_p is not a valid number"),
    ({"top_p": 1.1}, "top_p out of range(0.0, 1.0)"),
    ({"top_p": -0.1}, "top_p out of range(0.0, 1.0)"),
    ({"top_p": 0}, "top_p must be a positive float > 0.0 and <= 1.0"),
    ({"top_p": 0, "n": 2}, "top_p must be a positive float > 0.0 and <= 1.0"),
    ({"min_p": "a"}, "min_p is not a valid number"),
    ({"min_p": 1.0}, "min_p out of range [0.0, 1.0)"),
    ({"min_p": -0.1}, "min_p out of range [0.0, 1.0)"),
    ({"top_k": "a"}, "top_k is not an integer"),
    ({"top_k": 1.5}, "top_k is not an integer"),
    ({"top_k": 0}, "top_k must be -1 (all tokens) or a positive integer"),
    ({"top_k": -2}, "top_k must be -1 (all tokens) or a positive integer"),
    ({"seed": "a"}, "seed is not an integer"),
    ({"seed": 1.5}, "seed is not an integer"),
    ({"seed": -1}, "seed out of range [0, 4294967295]"),
    ({"seed": _UINT32 + 1}, "seed out of range [0, 4294967295]"),
    ({"stop": _TOO_MANY_STOPS}, "stop array must have no more than 16 strings"),
    ({"stop": ["a", 1]}, "stop array contains non string element"),
    ({"stop": 1}, "stop is not a string or array of strings"),
    ({"include_stop_str_in_output": "a"}, "include_stop_str_in_output accepts values true or false"),
    (
        {"stream": True, "include_stop_str_in_output": False},
        "include_stop_str_in_output cannot be set to false if streaming is used",
    ),
    ({"best_of": -1}, "best_of is not an unsigned integer"),
    ({"best_of": 1.5}, "best_of is not an unsigned integer"),
    ({"best_of": "a"}, "best_of is not an unsigned integer"),
    ({"best_of": 0}, "best_of value should be greater than 0"),
    ({"best_of": 20}, "best_of exceeds limit provided in graph config: 20"),
    ({"best_of": 2, "stream": True}, "best_of cannot be used in streaming mode"),
    ({"n": "a"}, "n is not an unsigned integer"),
    ({"n": -1}, "n is not an unsigned integer"),
    ({"n": 0}, "n value should be greater than 0"),
    ({"n": 3, "best_of": 2}, "n value cannot be greater than best_of"),
    (
        {"num_assistant_tokens": 3, "assistant_confidence_threshold": 0.5},
        "num_assistant_tokens and assistant_confidence_threshold are mutually exclusive and cannot both be set.",
    ),
    ({"num_assistant_tokens": 0}, "num_assistant_tokens must be an unsigned integer greater than 0"),
    ({"num_assistant_tokens": "a"}, "num_assistant_tokens must be an unsigned integer greater than 0"),
    ({"assistant_confidence_threshold": 0}, "assistant_confidence_threshold must be greater than 0"),
    ({"skip_special_tokens": 1}, "skip_special_tokens is not a bool"),
    ({"response_format": 1}, "response_format is not an object"),
]

COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt is missing"),
    ({"prompt": ""}, "prompt is missing"),
    ({"prompt": [""]}, "prompt is missing"),
    ({"prompt": []}, "prompt is missing"),
    ({"prompt": 5}, "prompt is not a string"),
    ({"prompt": {}}, "prompt is not a string"),
    ({"prompt": True}, "prompt is not a string"),
    ({"prompt": [5.5]}, "prompt is not a string"),
    ({"prompt": [["x"]]}, "prompt is not a string"),
    ({"logprobs": "1"}, "logprobs accepts integer values"),
    ({"logprobs": True}, "logprobs accepts integer values"),
    ({"echo": "yes"}, "echo accepts values true or false"),
    ({"max_tokens": 0}, "max_tokens value should be greater than 0 unless echo is set"),
]

_FUNCTION = {"name": "f"}
_PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
_NO_ROLES: list[Any] = [None, "", False, 5, []]
CHAT: list[tuple[dict[str, Any], str]] = [
    ({"max_completion_tokens": "5"}, "max_completion_tokens is not an unsigned integer"),
    ({"max_completion_tokens": 5.5}, "max_completion_tokens is not an unsigned integer"),
    ({"max_completion_tokens": -1}, "max_completion_tokens is not an unsigned integer"),
    ({"max_completion_tokens": _UINT32 + 1}, "max_completion_tokens value can't be greater than 4294967295"),
    ({"max_completion_tokens": 0}, "max_completion_tokens value should be greater than 0"),
    ({"max_tokens": 0}, "max_tokens value should be greater than 0"),
    ({"logprobs": 1}, "logprobs accepts values true or false"),
    ({"messages": None}, "Messages missing in request"),
    ({"messages": "hi"}, "Messages are not an array"),
    ({"messages": []}, "Messages array cannot be empty"),
    ({"messages": ["hi"]}, "Message is not a JSON object"),
    *(({"messages": [{"role": role, "content": "hi"}]}, "Every message must have 'role' field") for role in _NO_ROLES),
    ({"messages": [{"content": "hi"}]}, "Every message must have 'role' field"),
    (
        {"messages": [{"role": "user", "content": ["hi"]}]},
        "Invalid message structure - content array should contain objects",
    ),
    (
        {"messages": [{"role": "user", "content": [{"text": "hi"}]}]},
        "Invalid message structure - content object type missing",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": 5, "text": "hi"}]}]},
        "Invalid message structure - content object type missing",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        "Invalid message structure - content text missing",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": 5}]}]},
        "Invalid message structure - content image_url missing",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 5}}]}]},
        "Invalid message structure - image_url does not have url field",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "Invalid message structure - content text missing",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "Invalid message structure - content image_url missing",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "Invalid message structure - image_url does not have url field",
    ),
    *(
        ({"messages": [{"role": "user", "content": [{"type": kind, kind: {}}]}]}, "Unsupported content type")
        for kind in ("smell", "input_audio", "video", "video_url")
    ),
    *(
        ({"messages": messages}, "Message contains restricted <ov_genai_image> tag")
        for messages in (
            [{"role": "user", "content": [_PICTURE, {"type": "text", "text": "<ov_genai_image_0>"}]}],
            [{"role": "system", "content": "a <ov_genai_image_1>"}, {"role": "user", "content": [_PICTURE]}],
        )
    ),
    ({"tools": {}}, "Tools are not an array"),
    ({"tools": [1]}, "Tool is not a JSON object"),
    ({"tools": [{"type": "function", "function": 1}]}, "Function is not a valid JSON object"),
    ({"tools": [{"type": "function"}]}, "Function is not a valid JSON object"),
    ({"tools": [{"type": "function", "function": {}}]}, "Function object does not contain a valid name field"),
    ({"tools": [{"type": "function", "function": {"name": 1}}]}, "Function object does not contain a valid name field"),
    ({"tools": [{"type": "search", "function": _FUNCTION}]}, "Only function tools are supported"),
    ({"tool_choice": "any"}, "tool_choice should be either 'none' or 'auto' or 'required'"),
    ({"tool_choice": 1}, "tool_choice is not a valid JSON object or string"),
    ({"tool_choice": {"function": {"name": 1}}}, "tool_choice.function.name is not a valid string"),
    ({"tool_choice": {"function": {}}}, "tool_choice.function.name is not a valid string"),
    ({"chat_template_kwargs": 1}, "chat_template_kwargs must be an object"),
]


def on_completions(body: dict[str, Any]) -> tuple[Dialect, dict[str, Any]]:
    return completions("v3"), {"model": "m", "prompt": "x", **body}


def on_chat(body: dict[str, Any]) -> tuple[Dialect, dict[str, Any]]:
    return chats("v3"), {"model": "m", "messages": [{"role": "user", "content": "x"}], **body}


@table(("body", "text"), SHARED + COMPLETIONS, ids=lambda value: str(value)[:60])
def test_completions_refuse_in_the_words_of_ovms(body: dict[str, Any], text: str) -> None:
    dialect, whole = on_completions(body)
    answer = refusal(dialect, http_call(whole))
    assert (answer.status, answer.body) == (400, {"error": text})


@table(("body", "text"), SHARED + CHAT, ids=lambda value: str(value)[:60])
def test_chat_refuses_in_the_words_of_ovms(body: dict[str, Any], text: str) -> None:
    dialect, whole = on_chat(body)
    answer = refusal(dialect, http_call(whole))
    assert (answer.status, answer.body) == (400, {"error": text})


UNUSABLE: list[tuple[bytes, str]] = [
    (b"{", "Cannot parse JSON body"),
    (b"[]", "JSON body must be an object"),
    (b'{"model": "m", "x": ' + b"[" * 200 + b"]" * 200 + b"}", "JSON body exceeds maximum nesting depth"),
    (b'{"prompt": "x"}', "model field is missing in JSON body"),
    (b'{"model": null}', "model field is missing in JSON body"),
    (b'{"model": 5}', "model field is not a string"),
    (b'{"model": "m", "stream": "yes"}', "stream field is not a boolean"),
]


@table("dialect", [completions("v3"), chats("v3")], ids=["completions", "chat"])
@table(("body", "reason"), UNUSABLE, ids=[reason for _, reason in UNUSABLE])
def test_an_unusable_body_is_412(dialect: Dialect, body: bytes, reason: str) -> None:
    answer = refusal(dialect, http_call(body))
    assert (answer.status, answer.body) == (412, {"error": f"The file is not valid json - {reason}"})


@table(
    ("error", "text"),
    [
        (
            CapacityError("x", param="max_tokens", num_prompt_tokens=9, max_tokens=5, max_model_len=10),
            "Number of prompt tokens: 9 + max tokens value: 5 exceeds model max length: 10",
        ),
        (
            CapacityError("x", param="prompt", num_prompt_tokens=12, max_tokens=5, max_model_len=10),
            "Number of prompt tokens: 12 exceeds model max length: 10",
        ),
        (
            CapacityError("x", num_prompt_tokens=12, max_model_len=10),
            "Number of prompt tokens: 12 exceeds model max length: 10",
        ),
        (CapacityError("needs 7 blocks, there are 5"), "needs 7 blocks, there are 5"),
    ],
)
def test_a_prompt_beyond_the_context_is_told_with_both_numbers(error: CapacityError, text: str) -> None:
    reply = completions("v3").error_reply(error, http_call({}))
    assert (reply.status, json.loads(reply.body)) == (400, {"error": text})


def test_limits_in_texts_are_the_ones_that_apply() -> None:
    dialect = completions("v3", limits=Limits(max_stop_strings=2, max_best_of=5))
    stop = refusal(dialect, http_call({"model": "m", "prompt": "x", "stop": ["a", "b", "c"]}))
    best_of = refusal(dialect, http_call({"model": "m", "prompt": "x", "best_of": 5}))
    assert stop.body == {"error": "stop array must have no more than 2 strings"}
    assert best_of.body == {"error": "best_of exceeds limit provided in graph config: 5"}
