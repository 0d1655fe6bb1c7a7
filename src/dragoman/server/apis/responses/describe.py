"""The request bodies of Responses for OpenAPI. A default stands here only where it equals leaving the parameter out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.server.api import ModelProfile
from dragoman.server.apis.openai_wire.describe import EFFECTS as SHARED
from dragoman.server.apis.openai_wire.describe import about_fields, field_schemas
from dragoman.server.apis.openai_wire.fields import BOUNDS, MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE
from dragoman.server.apis.openai_wire.sampling import REFUSED as SHARED_REFUSED
from dragoman.server.apis.responses.items import ROLES
from dragoman.server.apis.responses.profiles import ResponsesProfile
from dragoman.server.apis.responses.request import IGNORED, INCLUDES, REFUSED, SUMMARIES, TRUNCATIONS, VERBOSITIES
from dragoman.server.apis.responses.schema import ResponsesBody
from dragoman.server.batches.keeping import PageNames
from dragoman.server.describe.components import parameter
from dragoman.server.describe.json_schema import (
    BOOLEAN,
    INTEGER,
    NULL,
    TEXT,
    Schema,
    any_of,
    array,
    described,
    nullable,
    range_of,
    struct_schemas,
)
from dragoman.tokenizer.message_content import DETAILS
from dragoman.types import Limits

PAGE = PageNames("after", "", 20, 100)  # OpenAI API reference, list input items
_UINT32 = {"type": "integer", "minimum": 1, "maximum": 4294967295}
_IGNORED = "; told back, and named in `x-dragoman-ignored`"

EFFECTS: Mapping[str, str] = {
    **SHARED,
    "stream_options": "without effect: the last event always tells the usage; refused on `/v3`",
    "max_tokens": "the same as `max_output_tokens`, which wins",
    "input": "a text, which the user says, or items: messages, function calls and their outputs, reasoning",
    "instructions": "a system message before everything else; not carried over by `previous_response_id`",
    "max_output_tokens": "maximum number of tokens to generate, including reasoning; without it, up to the context",
    "max_tool_calls": f"counts calls of built-in tools, of which there are none{_IGNORED}",
    "tools": "the functions that the model may call, flat or in the nested form of conversations",
    "tool_choice": "whether it calls: none, auto, required, one function, or only some (`allowed_tools`)",
    "parallel_tool_calls": "false: only the first call is answered",
    "text": "`format`: text, json_object or json_schema; `verbosity` is told back and has no effect",
    "reasoning": (
        "`effort` reaches the template; with `summary` the reasoning stands in the summary's place; `max_tokens` is "
        "`thinking_token_budget`"
    ),
    "include": "`message.output_text.logprobs`: the log-probabilities of the output; the others change nothing",
    "top_logprobs": (
        "with log-probabilities, this many likeliest tokens at each place; -1: all, if --max-logprobs allows as many"
    ),
    "logprobs": "the same as including `message.output_text.logprobs`; not in streams on `/v3`",
    "background": "whether the call is answered at once, the response made meanwhile; not with `store: false`",
    "truncation": "auto: the oldest items go, until the input fits; disabled: it is refused",
    "previous_response_id": "the stored response that this one goes on from",
    "store": "whether the response can be fetched and gone on from",
    "metadata": "labels, told back",
    "user": f"a label of the end user{_IGNORED}",
    "safety_identifier": f"a label of the end user{_IGNORED}",
    "service_tier": "there is one tier, and the answer says `default`; named in `x-dragoman-ignored`",
    "chat_template_kwargs": "reaches the model's template",
}
_DEFAULTS = {"logprobs": False, "background": False, "truncation": "disabled", "store": True}


def request_body(profile: ResponsesProfile, model: ModelProfile) -> Schema:
    struct = struct_schemas([ResponsesBody])["ResponsesBody"]
    struct["properties"] = {name: one for name, one in struct["properties"].items() if name not in REFUSED}
    required = ["model"] if profile.wire.requires_model else []
    properties = field_schemas(
        struct,
        EFFECTS,
        profile.wire,
        model,
        required=required,
        defaults=_DEFAULTS,
        own=_own_types(profile, model.limits),
    )
    names = ("input", "previous_response_id")  # null is as good as absent
    return {
        "type": "object",
        "description": about_fields({**SHARED_REFUSED, **REFUSED}, IGNORED, is_lenient=False, also="; built-in tools"),
        "properties": properties,
        **({"required": required} if required else {}),
        "anyOf": [{"required": [name], "properties": {name: {"not": NULL}}} for name in names],
    }


def _own_types(profile: ResponsesProfile, limits: Limits) -> dict[str, Schema]:
    objects = {"type": "object"}
    text: Schema = {"type": "string", "minLength": 1} if profile.wire.refuses_empty_prompt else TEXT
    return {
        "input": any_of(text, array({"$ref": "#/components/schemas/InputItem"}, maxItems=limits.max_messages)),
        "max_output_tokens": _UINT32,
        "max_tokens": _UINT32,
        "max_tool_calls": _UINT32,
        "tools": array(objects, maxItems=limits.max_tools),
        "tool_choice": any_of({"enum": ["none", "auto", "required"]}, objects),
        "include": array({"enum": list(INCLUDES)}),
        "truncation": {"enum": list(TRUNCATIONS)},
        "reasoning": {
            "type": "object",
            "properties": {
                "effort": nullable({"enum": list(profile.efforts)}),
                "summary": nullable({"enum": list(SUMMARIES)}),
                "generate_summary": nullable({"enum": list(SUMMARIES)}),
                "max_tokens": nullable({"type": "integer", **range_of(BOUNDS["thinking_token_budget"])}),
            },
        },
        "metadata": {
            "type": "object",
            "maxProperties": MAX_METADATA,
            "propertyNames": {"maxLength": MAX_METADATA_KEY},
            "additionalProperties": {"type": "string", "maxLength": MAX_METADATA_VALUE},
        },
    }


def request_schemas() -> dict[str, Schema]:
    """The components that the bodies refer to."""
    schemas = struct_schemas([ResponsesBody])
    del schemas["ResponsesBody"]
    schemas["InputItem"]["properties"]["role"] = nullable({"enum": list(ROLES)})
    schemas["InputPart"]["properties"]["detail"] = nullable({"enum": list(DETAILS)})
    schemas["TextOptions"]["properties"]["verbosity"] = nullable({"enum": list(VERBOSITIES)})
    return schemas


PARAMETERS: Mapping[str, dict[str, Any]] = {
    "response_id": parameter("path", "response_id", "the id of a response", TEXT),
    "after": parameter("query", "after", "the id of the item that comes before the page", TEXT),
    "limit": parameter(
        "query",
        "limit",
        "most items on the page",
        described({"type": "integer", "minimum": 1, "maximum": PAGE.most}, "", PAGE.usual),
    ),
    "response_stream_query": parameter("query", "stream", "whether to send its events", BOOLEAN),
    "starting_after_query": parameter("query", "starting_after", "the number of the last event that is known", INTEGER),
    "order": parameter("query", "order", "the last item first, or the first", {"enum": ["asc", "desc"]}),
}
