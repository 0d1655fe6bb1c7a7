"""OpenVINO Model Server's `/v3`: the OpenAI dialects with that server's defaults, limits, words and errors.

Sources: OVMS v2025.0, completions API (defaults, limits), embeddings and rerank endpoints, HTTP status map; OVMS HEAD
7e4df0c7, openai_completions.cpp, embeddings_api.cpp and rerank_utils.cpp (texts).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from dragoman.errors import CapacityError, ServerError, TextOnly
from dragoman.parameters import Bounds
from dragoman.server.apis.openai_wire.errors import error_shape
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.descriptions import statuses
from dragoman.types import Limits


class OvmsError(msgspec.Struct):
    """The body of an error."""

    error: str


def _text(error: ServerError) -> str:
    """OVMS's own words where its clients look for them."""
    if error.kind == "not_found" and "not found" not in error.message:
        return f"{error.message}: not found"  # these two words tell a missing model from a bad request
    if isinstance(error, TextOnly):
        return "This servable supports only text input, but image_url has been provided"
    if not isinstance(error, CapacityError) or None in (error.num_prompt_tokens, error.max_model_len):
        return error.message
    needed = f"Number of prompt tokens: {error.num_prompt_tokens}"
    if error.max_tokens is not None and error.param != "prompt":
        needed += f" + max tokens value: {error.max_tokens}"
    return f"{needed} exceeds model max length: {error.max_model_len}"


ERRORS = error_shape(statuses(invalid_payload=412, timeout=503), OvmsError, lambda error: OvmsError(_text(error)))

_INVALID_JSON = "The file is not valid json - "
_UINT32_MAX = 4294967295
_TOOL_CHOICE = "tool_choice should be either 'none' or 'auto' or 'required'"
_EXCLUSIVE = "num_assistant_tokens and assistant_confidence_threshold are mutually exclusive and cannot both be set."


def _either(param: str, text: str) -> dict[str, str]:
    """One text for a field that is missing and for one of a wrong type."""
    return {f"{param}.missing": text, f"{param}.type": text}


def _number_texts() -> dict[str, str]:
    texts: dict[str, str] = {}
    for name in ("frequency_penalty", "presence_penalty"):
        texts |= {f"{name}.{side}": f"{name} out of range(-2.0, 2.0)" for side in ("low", "high")}
    for name, interval in (("temperature", "(0.0, 2.0)"), ("top_p", "(0.0, 1.0)"), ("min_p", " [0.0, 1.0)")):
        texts |= {f"{name}.{side}": f"{name} out of range{interval}" for side in ("low", "high")}
    numbers = ("repetition_penalty", "length_penalty", "diversity_penalty", "temperature", "top_p", "min_p")
    for name in ("frequency_penalty", "presence_penalty", *numbers):
        texts[f"{name}.type"] = f"{name} is not a valid number"
    for name in ("max_tokens", "max_completion_tokens"):
        texts[f"{name}.type"] = texts[f"{name}.negative"] = f"{name} is not an unsigned integer"
        texts[f"{name}.high"] = f"{name} value can't be greater than {_UINT32_MAX}"
    for name in ("best_of", "n"):
        texts[f"{name}.type"] = texts[f"{name}.negative"] = f"{name} is not an unsigned integer"
        texts[f"{name}.low"] = f"{name} value should be greater than 0"
    return texts


_SHARED_TEXTS: Mapping[str, str] = {
    **_number_texts(),
    "body.json": f"{_INVALID_JSON}Cannot parse JSON body",
    "body.slip": f"{_INVALID_JSON}Cannot parse JSON body: {{reason}}",
    "body.object": f"{_INVALID_JSON}JSON body must be an object",
    "body.nesting": f"{_INVALID_JSON}JSON body exceeds maximum nesting depth",
    "body.structure": f"{_INVALID_JSON}JSON body is too large in structure: {{reason}}",
    "body.model": f"{_INVALID_JSON}model field is missing in JSON body",
    "model.type": f"{_INVALID_JSON}model field is not a string",
    "stream.type": f"{_INVALID_JSON}stream field is not a boolean",
    "stream_options.without_stream": "stream_options provided, but stream not set to true",
    "stream_options.type": "stream_options is not an object",
    "stream_options.include_usage.type": "stream_options.include_usage is not a boolean",
    "ignore_eos.type": "ignore_eos accepts values true or false",
    "max_tokens.ignore_eos": "when ignore_eos is true max_tokens can not be greater than {limit}",
    "top_p.zero": "top_p must be a positive float > 0.0 and <= 1.0",
    "top_k.type": "top_k is not an integer",
    "top_k.low": "top_k must be -1 (all tokens) or a positive integer",
    "seed.type": "seed is not an integer",
    "seed.low": f"seed out of range [0, {_UINT32_MAX}]",
    "seed.high": f"seed out of range [0, {_UINT32_MAX}]",
    "stop.type": "stop is not a string or array of strings",
    "stop[].type": "stop array contains non string element",
    "stop.count": "stop array must have no more than {limit} strings",
    "include_stop_str_in_output.type": "include_stop_str_in_output accepts values true or false",
    "include_stop_str_in_output.stream": "include_stop_str_in_output cannot be set to false if streaming is used",
    "best_of.high": "best_of exceeds limit provided in graph config: {limit}",
    "best_of.stream": "best_of cannot be used in streaming mode",
    "n.above_best_of": "n value cannot be greater than best_of",
    "num_assistant_tokens.conflict": _EXCLUSIVE,
    "num_assistant_tokens.type": "num_assistant_tokens must be an unsigned integer greater than 0",
    "num_assistant_tokens.low": "num_assistant_tokens must be an unsigned integer greater than 0",
    "assistant_confidence_threshold.low": "assistant_confidence_threshold must be greater than 0",
    "skip_special_tokens.type": "skip_special_tokens is not a bool",
    "response_format.type": "response_format is not an object",
}

_COMPLETIONS_TEXTS: Mapping[str, str] = {
    "max_tokens.low": "max_tokens value should be greater than 0 unless echo is set",
    **dict.fromkeys(("prompt.type", "prompt[].type", "prompt[][].type"), "prompt is not a string"),
    "prompt.missing": "prompt is missing",
    "logprobs.type": "logprobs accepts integer values",
    "echo.type": "echo accepts values true or false",
}

_CHAT_TEXTS: Mapping[str, str] = {
    "max_tokens.low": "max_tokens value should be greater than 0",
    "max_completion_tokens.low": "max_completion_tokens value should be greater than 0",
    "logprobs.type": "logprobs accepts values true or false",
    "messages.missing": "Messages missing in request",
    "messages.type": "Messages are not an array",
    "messages.empty": "Messages array cannot be empty",
    "messages[].type": "Message is not a JSON object",
    **_either("messages[].role", "Every message must have 'role' field"),
    "messages[].content[].type": "Invalid message structure - content array should contain objects",
    **_either("messages[].content[].type", "Invalid message structure - content object type missing"),
    **_either("messages[].content[].text", "Invalid message structure - content text missing"),
    **_either("messages[].content[].image_url", "Invalid message structure - content image_url missing"),
    **_either("messages[].content[].image_url.url", "Invalid message structure - image_url does not have url field"),
    "messages[].content[].type.value": "Unsupported content type",
    "messages[].content.restricted": "Message contains restricted <ov_genai_image> tag",
    "tools.type": "Tools are not an array",
    "tools[].type": "Tool is not a JSON object",
    **_either("tools[].function", "Function is not a valid JSON object"),
    **_either("tools[].function.name", "Function object does not contain a valid name field"),
    "tools[].type.value": "Only function tools are supported",
    "tool_choice.value": _TOOL_CHOICE,
    "tool_choice.type": "tool_choice is not a valid JSON object or string",
    **_either("tool_choice.function.name", "tool_choice.function.name is not a valid string"),
    "chat_template_kwargs.type": "chat_template_kwargs must be an object",
}

V3 = Profile(
    name="v3",
    errors=ERRORS,
    texts={**_SHARED_TEXTS, **_COMPLETIONS_TEXTS},
    payload_params=frozenset({"model", "stream"}),
    bounds={
        "min_p": Bounds(0.0, 1.0, is_high_open=True),
        "seed": Bounds(0, _UINT32_MAX),
        "num_assistant_tokens": Bounds(1, Limits().max_assistant_tokens),
    },
    has_strict_types=True,
    requires_model=True,
    default_seed=0,
    default_max_tokens=None,
    max_stop_strings=16,
    is_best_of_beam_width=True,
    is_best_of_limit_exclusive=True,
    shows_stop_in_stream=True,
    max_ignore_eos_tokens=4000,
    refuses_empty_prompt=True,
    refuses_zero_top_p=True,
    fixes_defaults=True,
    chunk_object="text_completion.chunk",
)

V3_CHAT = replace(V3, texts={**_SHARED_TEXTS, **_CHAT_TEXTS}, restricted_beside_images="<ov_genai_image_")

V3_EMBEDDINGS = replace(
    V3,
    texts={
        **V3.texts,
        "input.missing": "input field is required",
        "input.type": "input should be string or array of strings",
        "encoding_format.type": "encoding_format should be string",
        "encoding_format.value": "encoding_format should either base64 or float",
    },
)

V3_RERANK = replace(
    V3,
    texts={
        **V3.texts,
        "query.missing": "query field is missing in request",
        "query.type": "query is not a string",
        "documents.missing": "documents field is missing in request",
        "documents.type": "documents is not an array",
        "documents[].type": "documents array element is neither string nor object",
        "documents[].text.missing": "document text field is missing",
        "documents[].text.type": "document text field have to be string",
        "top_n.type": "top_n accepts integer values",
        "return_documents.type": "return_documents accepts boolean values",
        "rank_fields.type": "rank_fields is not an array",
        "max_chunks_per_doc.type": "max_chunks_per_doc accepts integer values",
    },
)
