"""The bodies of messages as components of the description. Called when the document is built."""

from __future__ import annotations

from dragoman.server.api import ModelProfile
from dragoman.server.apis.anthropic.conversation import ALLOWED, IMAGE_TYPES
from dragoman.server.apis.anthropic.parameters import (
    ANTHROPIC,
    DISPLAYS,
    EFFORTS,
    IGNORED,
    MIN_BUDGET_TOKENS,
    REFUSED,
    SERVICE_TIERS,
    THINKING_TYPES,
    TTLS,
)
from dragoman.server.apis.anthropic.schema import MessagesBody, PromptBody
from dragoman.server.apis.anthropic.tools import CHOICES, TOOL_NAME
from dragoman.server.apis.openai_wire.describe import EFFECTS, field_schemas
from dragoman.server.apis.openai_wire.keeping import NOT_KEPT
from dragoman.server.describe.json_schema import (
    LENIENT_BOOLEAN,
    NON_EMPTY_TEXT,
    TEXT,
    Schema,
    an_object,
    any_of,
    array,
    nullable,
    ref,
    struct_schemas,
    without_null,
)
from dragoman.types import Limits

_EFFECTS = {
    **EFFECTS,
    "messages": "the conversation; if its last message is the assistant's, the answer continues it",
    "model": "which model answers; the default model if absent, or a placeholder such as `default`",
    "system": "the system prompt",
    "max_tokens": "maximum number of tokens to generate; 0 only reads the prompt into the prefix cache",
    "stream": "send the answer while it is generated",
    "top_k": "only the k most likely tokens; 0 means all",
    "stop_sequences": "texts that end the answer",
    "tools": "the tools that the model may call",
    "tool_choice": "whether it calls one",
    "thinking": "whether the model thinks before it answers; its chat template decides if absent",
    "output_config": "the form of the answer, and how much the model thinks",
    "output_format": "the form of the answer, as older clients ask for it",
    "cache_control": f"for how long the prompt is kept, as in any of its blocks; without effect where {NOT_KEPT}",
}


def schemas(model: ModelProfile) -> dict[str, Schema]:
    parts = struct_schemas([MessagesBody, PromptBody])
    messages, prompt = parts.pop("MessagesBody"), parts.pop("PromptBody")
    parts["InputMessage"]["required"] = ["role", "content"]
    fields = parts["InputMessage"]["properties"]
    fields["role"], fields["content"] = {"enum": list(ALLOWED)}, without_null(fields["content"])
    parts["InputBlock"] = _blocks()
    parts["ImageSource"] = any_of(
        an_object({"type": {"const": "base64"}, "media_type": {"enum": list(IMAGE_TYPES)}, "data": TEXT}),
        an_object({"type": {"const": "url"}, "url": {"type": "string", "pattern": r"^[Hh][Tt][Tt][Pp][Ss]?://\S"}}),
    )
    parts["CustomTool"]["properties"] |= {
        "name": {"type": "string", "pattern": f"^{TOOL_NAME.pattern}$"},
        "type": nullable({"const": "custom"}),
        "strict": nullable(LENIENT_BOOLEAN),
    }
    parts["CacheControl"] = an_object({"type": {"const": "ephemeral"}}, {"ttl": nullable({"enum": list(TTLS)})})
    parts["ToolWish"] = an_object(
        {"type": {"enum": list(CHOICES)}},
        {"name": nullable(TEXT), "disable_parallel_tool_use": nullable(LENIENT_BOOLEAN)},
    )
    display = {"display": nullable({"enum": list(DISPLAYS)})}
    budget = {"type": "integer", "minimum": MIN_BUDGET_TOKENS}
    parts["ThinkingConfig"] = any_of(
        an_object({"type": {"const": "enabled"}, "budget_tokens": budget}, display),
        an_object(
            {"type": {"enum": list(THINKING_TYPES[1:])}}, {**display, "budget_tokens": nullable({"type": "integer"})}
        ),
    )
    parts["OutputFormat"] = an_object({"type": {"const": "json_schema"}, "schema": {"type": "object"}})
    parts["OutputConfig"]["properties"]["effort"] = nullable({"enum": list(EFFORTS)})
    return {
        **parts,
        "MessagesRequest": _body(messages, model, ["max_tokens", "messages"]),
        "CountTokensRequest": _body(prompt, model, ["messages"]),
    }


def _blocks() -> Schema:
    text = an_object({"type": {"const": "text"}, "text": TEXT})
    image = an_object({"type": {"const": "image"}, "source": ref("ImageSource")})
    result = {
        "content": nullable(any_of(TEXT, array(any_of(text, image)))),
        "is_error": nullable(LENIENT_BOOLEAN),
    }
    return any_of(
        text,
        image,
        an_object({"type": {"const": "tool_use"}, "id": TEXT, "name": TEXT, "input": {"type": "object"}}),
        an_object({"type": {"const": "tool_result"}, "tool_use_id": TEXT}, result),
        an_object({"type": {"const": "thinking"}, "thinking": TEXT}, {"signature": nullable(TEXT)}),
        an_object({"type": {"const": "redacted_thinking"}}, {"data": nullable(TEXT)}),
    )


def _body(body: Schema, model: ModelProfile, required: list[str]) -> Schema:
    effects = {**{name: f"without effect: {reason}" for name, reason in IGNORED.items()}, **_EFFECTS}
    properties = field_schemas(
        body, effects, ANTHROPIC, model, required=required, defaults={"top_k": 0}, own=_own_types(body, model.limits)
    )
    refused = "; ".join(f"`{name}`: {reason}" for name, reason in REFUSED.items())
    ignored = ", ".join(f"`{name}`" for name in IGNORED)
    text = (
        f"null means not given, for every field. Refused by name: {refused}. "
        f"Accepted without effect, like every unknown field, and named in `x-dragoman-ignored`: {ignored}."
    )
    return {"type": "object", "description": text, "properties": properties, "required": required}


def _own_types(body: Schema, limits: Limits) -> dict[str, Schema]:
    fields, word = body["properties"], {**NON_EMPTY_TEXT, "maxLength": limits.max_word_chars}
    text = an_object({"type": {"const": "text"}, "text": TEXT})
    return {
        "messages": {**without_null(fields["messages"]), "minItems": 1, "maxItems": limits.max_messages},
        "tools": {**without_null(fields["tools"]), "maxItems": limits.max_tools},
        "system": any_of(TEXT, array(text, maxItems=limits.max_messages)),
        "stop_sequences": array(word, maxItems=limits.max_stop_strings),
        "service_tier": {"enum": list(SERVICE_TIERS)},
    }
