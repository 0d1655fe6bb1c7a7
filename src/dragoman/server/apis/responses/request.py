"""Reads the parameters and tools of a response; the differences between `/v1` and `/v3`. On the event loop.

Sources: OpenAI API reference, responses; OVMS 2026.2, openai_responses.cpp and its documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from dragoman.errors import UnsupportedFeature
from dragoman.parameters import UINT32_MAX
from dragoman.server.apis.openai_wire.common import Reading
from dragoman.server.apis.openai_wire.conversation import (
    ImageUrl,
    ToolUse,
    checked_function,
    named_tool,
    plain_choice,
    used_tools,
    with_allowed_tools,
)
from dragoman.server.apis.openai_wire.fields import (
    BOUNDS,
    check_count,
    check_metadata,
    check_number,
    check_word,
    either,
    shown,
    unknown_names,
)
from dragoman.server.apis.openai_wire.grammars import ResponseFormat, read_response_format
from dragoman.server.apis.openai_wire.profile import V1, Profile
from dragoman.server.apis.openai_wire.sampling import IGNORED as SHARED_IGNORED
from dragoman.server.apis.openai_wire.sampling import SharedBody, logprob_count
from dragoman.server.apis.openai_wire.thinking import effort_switches
from dragoman.server.apis.ovms_wire import V3_CHAT
from dragoman.types import Grammar, Limits, ToolChoice

# --- the body ---------------------------------------------------------------------------------------------------------


class InputPart(msgspec.Struct, kw_only=True):
    """One part of an item's content: `input_text`, `output_text`, `refusal`, `input_image`, `reasoning_text`, ..."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    image_url: str | ImageUrl | None = None
    detail: str | None = None


class InputItem(msgspec.Struct, kw_only=True):
    """One item of the input: a message, a function call, its output, reasoning, or a reference to any of them."""

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | dict[str, Any] | None = None
    output: str | list[InputPart] | None = None


class TextFormat(msgspec.Struct, kw_only=True):
    """`text.format`: text, json_object, or json_schema with its schema."""

    type: str
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, kw_only=True):
    """`text`."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(msgspec.Struct, kw_only=True):
    """`reasoning`. `generate_summary` is what `summary` was called before; `max_tokens` is OpenRouter's."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    max_tokens: int | None = None


class ResponsesBody(SharedBody, kw_only=True):
    input: str | list[InputItem] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    logprobs: bool | None = None
    truncation: str | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def reasoning_tokens(self) -> int | None:
        return None if self.reasoning is None else self.reasoning.max_tokens


# --- the two APIs -----------------------------------------------------------------------------------------------------

_CONTENT = "input[].content[]"
_IMAGE = "input_image.image_url must be a string or object"

_TEXTS: Mapping[str, str] = {
    "input.missing": "input missing in request",
    "input.type": "input is not a string or array",
    "input.empty": "input cannot be empty",
    "input.no_items": "Messages array cannot be empty",
    "input[].type": "input array items must be objects",
    "input[].role.missing": "input item role is missing or invalid",
    "input[].role.type": "input item role is missing or invalid",
    "input[].content.missing": "input item content is missing",
    "input[].content.type": "input item content must be a string or array",
    "input[].content.empty": "Invalid message structure - content array is empty",
    f"{_CONTENT}.type": "input content items must be objects",
    f"{_CONTENT}.type.missing": "input content item type is missing or invalid",
    f"{_CONTENT}.type.type": "input content item type is missing or invalid",
    f"{_CONTENT}.type.value": "Unsupported content type. Supported types are input_text and input_image.",
    f"{_CONTENT}.text.missing": "input_text requires a valid text field",
    f"{_CONTENT}.text.type": "input_text requires a valid text field",
    f"{_CONTENT}.image_url.missing": "input_image requires image_url field",
    f"{_CONTENT}.image_url.type": _IMAGE,
    f"{_CONTENT}.image_url.url.missing": "input_image.image_url.url is missing or invalid",
    f"{_CONTENT}.image_url.url.type": "input_image.image_url.url is missing or invalid",
    "stream_options.given": (
        "stream_options is not supported in Responses API. Usage statistics are always included in the response."
    ),
    "logprobs.stream": "logprobs are not supported in streaming mode.",
    "reasoning.type": "reasoning is not an object",
    "reasoning.effort.type": "reasoning.effort is not a string",
    "reasoning.effort.value": "reasoning.effort must be one of: low, medium, high",
    "max_output_tokens.type": "max_output_tokens is not an unsigned integer",
    "max_output_tokens.negative": "max_output_tokens is not an unsigned integer",
    "max_output_tokens.low": "max_output_tokens value should be greater than 0",
    "max_output_tokens.high": f"max_output_tokens value can't be greater than {UINT32_MAX}",
}


@dataclass(frozen=True, slots=True)
class ResponsesProfile:
    """One set of defaults. `ends_with_done`: streams have an end mark, and events have no names."""

    wire: Profile
    efforts: tuple[str, ...]
    too_long: Literal["max_output_tokens", "max_tokens"]
    ends_with_done: bool = False
    has_summary: bool = False
    refuses_stream_options: bool = False
    refuses_streamed_logprobs: bool = False


OPENAI_RESPONSES = ResponsesProfile(
    V1, efforts=("none", "minimal", "low", "medium", "high", "xhigh", "max"), too_long="max_output_tokens"
)
OVMS_RESPONSES = ResponsesProfile(
    replace(V3_CHAT, texts={**V3_CHAT.texts, **_TEXTS}),
    efforts=("low", "medium", "high"),
    too_long="max_tokens",
    ends_with_done=True,
    has_summary=True,
    refuses_stream_options=True,
    refuses_streamed_logprobs=True,
)

# --- parameters -------------------------------------------------------------------------------------------------------

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
IMAGE_URLS = "message.input_image.image_url"
INCLUDES = (LOGPROBS, ENCRYPTED, IMAGE_URLS)
TRUNCATIONS = ("auto", "disabled")
VERBOSITIES = ("low", "medium", "high")
SUMMARIES = ("auto", "concise", "detailed")
_OBJECTS: Mapping[str, type[msgspec.Struct]] = {"text": TextOptions, "reasoning": ReasoningOptions}
TOOL_FIELDS = ("name", "description", "parameters", "strict")

COMPACTED = "nothing is compacted here; truncation: auto drops what does not fit"

REFUSED: Mapping[str, str] = {
    "conversation": "conversations are not kept here; go on with previous_response_id",
    "prompt": "prompt templates are not kept here; send input and instructions",
    "context_management": COMPACTED,
    "moderation": "nothing is moderated here",
    "prompt_logprobs": "a response has no place for them; a completion has",
}

IGNORED: Mapping[str, str] = {
    **{name: SHARED_IGNORED[name] for name in ("user", "service_tier", "safety_identifier")},
    "max_tool_calls": "it counts calls of built-in tools, of which there are none here",
    "text.verbosity": "models here have no such switch",
    "top_logprobs": f"include does not name {LOGPROBS}",
    f"include[{ENCRYPTED}]": "reasoning is told in the clear",
    "stream_options.include_usage": "the last event always tells the usage",
    "stream_options.continuous_usage_stats": "the last event tells the usage",
}
"""Parameters that change nothing but what is told back; all are reported to the client."""


def check_refused(raw: Mapping[str, Any]) -> None:
    for name, reason in REFUSED.items():
        if name in raw:
            raise UnsupportedFeature(f"{name} is not supported: {reason}", param=name)


def check_options(body: ResponsesBody, profile: ResponsesProfile) -> None:
    """Checks the small parameters, one by one. Raises: InvalidRequest."""
    wire = profile.wire
    if body.background and body.store is False:
        raise wire.fault(
            "background", "value", "background must be false if store is false, or the answer could not be fetched"
        )
    if profile.refuses_stream_options and body.stream_options is not None:
        message = "stream_options is not supported: the last event always tells the usage"
        raise wire.fault("stream_options", "given", message)
    for name in ("max_output_tokens", "max_tool_calls"):
        value = getattr(body, name)
        if value is not None:
            check_number(name, value, BOUNDS["max_tokens"], wire)
    check_word("truncation", body.truncation, TRUNCATIONS, wire)
    text, reasoning = body.text, body.reasoning
    if text is not None:
        check_word("text.verbosity", text.verbosity, VERBOSITIES, wire)
    if reasoning is not None:
        check_word("reasoning.effort", reasoning.effort, profile.efforts, wire)
        check_word("reasoning.summary", reasoning.summary, SUMMARIES, wire)
        check_word("reasoning.generate_summary", reasoning.generate_summary, SUMMARIES, wire)
    check_metadata(body.metadata or {}, wire)
    for position, name in enumerate(body.include or ()):
        if name not in INCLUDES:
            message = f"include[{position}] {shown(name)} is not supported: it must be {either(INCLUDES)}"
            raise UnsupportedFeature(message, param=f"include[{position}]")


def top_logprobs(body: ResponsesBody, reading: Reading, profile: ResponsesProfile) -> int | None:
    """Number of candidates to show per token; None = no log-probabilities. Raises: InvalidRequest."""
    body.top_logprobs = logprob_count("top_logprobs", body.top_logprobs, reading)
    if body.logprobs and body.stream and profile.refuses_streamed_logprobs:
        message = "logprobs cannot be true with stream: true"
        raise profile.wire.fault("logprobs", "stream", message)
    return (body.top_logprobs or 0) if body.logprobs or LOGPROBS in (body.include or ()) else None


def response_format(body: ResponsesBody, profile: Profile) -> tuple[ResponseFormat | None, Grammar | None]:
    """The body's format as the grammars read it, and the grammar of `text.format`. Raises: InvalidRequest."""
    text_format = None if body.text is None else body.text.format
    if text_format is None:
        return body.response_format, None
    if body.response_format is not None:
        raise profile.conflict("response_format", "text.format")
    check_word("text.format.type", text_format.type, ("text", "json_object", "json_schema"), profile)
    if text_format.type == "json_schema" and text_format.schema is None:
        raise profile.missing("text.format.schema", "a JSON schema")
    wanted = ResponseFormat(
        type=text_format.type,
        schema=text_format.schema if text_format.type == "json_schema" else None,
        strict=text_format.strict,
    )
    return wanted, read_response_format("text.format", wanted, profile)


def template_kwargs(body: ResponsesBody) -> dict[str, Any]:
    effort = None if body.reasoning is None else body.reasoning.effort
    return {**effort_switches(effort), **(body.chat_template_kwargs or {})}


def idle_names(raw: Mapping[str, Any], body: ResponsesBody, logprobs: int | None) -> dict[str, str]:
    """Fields without effect that only this API has, and why: the known ones in the order of `IGNORED`, then others."""
    ignored = {name for name in IGNORED if name in raw}
    if logprobs is not None or not body.top_logprobs:
        ignored.discard("top_logprobs")
    if body.text is not None and body.text.verbosity is not None:
        ignored.add("text.verbosity")
    if ENCRYPTED in (body.include or ()):
        ignored.add(f"include[{ENCRYPTED}]")
    options = body.stream_options
    if options is not None and options.include_usage is not None:
        ignored.add("stream_options.include_usage")
    if options is not None and options.is_continuous:
        ignored.add("stream_options.continuous_usage_stats")
    known = {name: why for name, why in IGNORED.items() if name in ignored}
    return {**known, **dict.fromkeys(_unknown_inside(raw), "")}


def _unknown_inside(raw: Mapping[str, Any]) -> list[str]:
    """Names that nobody knows, in the objects of a body: `text.tone`, `tools.defer_loading`."""
    found = [
        f"{place}.{name}"
        for place, kind in _OBJECTS.items()
        if isinstance(raw.get(place), dict)
        for name in unknown_names(raw[place], kind)
    ]
    tools = raw.get("tools") or ()
    functions = (tool.get("function", tool) for tool in tools if isinstance(tool, dict))
    return found + [
        f"tools.{name}" for function in functions for name in function if name not in (*TOOL_FIELDS, "type")
    ]


# --- tools ------------------------------------------------------------------------------------------------------------


def read_tools(body: ResponsesBody, limits: Limits, profile: Profile) -> ToolUse:
    sent = body.tools or []
    check_count("tools", len(sent), limits.max_tools, profile)
    functions = {_place(tool, f"tools[{i}]"): _function(tool, f"tools[{i}]", profile) for i, tool in enumerate(sent)}
    names = [function["name"] for function in functions.values()]
    choice = body.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        functions, choice = with_allowed_tools(
            functions, "tool_choice", choice.get("mode"), choice.get("tools"), profile
        )
        names = [function["name"] for function in functions.values()]
    wish, name = _wish(choice, names, profile)
    return used_tools(functions, wish, name, profile)


def _place(tool: Mapping[str, Any], path: str) -> str:
    """The place of the function's fields: OpenVINO Model Server also takes the nested form that conversations have."""
    return path if tool.get("function") is None else f"{path}.function"


def _function(tool: Mapping[str, Any], path: str, profile: Profile) -> dict[str, Any]:
    kind = tool.get("type")
    if kind not in (None, "function"):
        message = f"{path}.type {shown(kind)} is not supported: only function tools are called here"
        raise UnsupportedFeature(message, param=f"{path}.type")
    nested = tool.get("function")
    if nested is not None and not isinstance(nested, dict):
        raise profile.wrong(f"{path}.function", "an object", nested, "type")
    function, path = tool if nested is None else nested, _place(tool, path)
    if not isinstance(function.get("name"), str):
        problem = "missing" if function.get("name") is None else "type"
        reason = "is missing" if problem == "missing" else f"must be a string, got {shown(function['name'])}"
        raise profile.fault(f"{path}.name", problem, f"{path}.name {reason}")
    for name, kinds, words in (("description", str, "a string"), ("parameters", dict, "an object"), _STRICT):
        value = function.get(name)
        if value is not None and not isinstance(value, kinds):
            raise profile.wrong(f"{path}.{name}", words, value, "type")
    definition = {name: function[name] for name in TOOL_FIELDS if name in function}
    return checked_function(definition, path, profile)


_STRICT = ("strict", bool, "true or false")


def _wish(choice: str | dict[str, Any] | None, names: Sequence[str], profile: Profile) -> tuple[ToolChoice | None, str]:
    if isinstance(choice, dict):
        return "named", named_tool(choice, "tool_choice", names, profile)
    allowed = "none, auto, required, a function or allowed_tools"
    return plain_choice(choice, names, allowed, profile), ""
