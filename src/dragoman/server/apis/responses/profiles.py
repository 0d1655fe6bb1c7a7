"""Differences between Responses on `/v1` and `/v3`. Source: OVMS 2026.2, openai_responses.cpp and its documentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from dragoman.server.apis.openai_wire.profile import V1, Profile
from dragoman.server.apis.ovms_wire.profile import V3_CHAT

_UINT32_MAX = 4294967295
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
    "max_output_tokens.high": f"max_output_tokens value can't be greater than {_UINT32_MAX}",
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
