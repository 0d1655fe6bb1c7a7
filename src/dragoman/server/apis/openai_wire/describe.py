"""Completions and chat as schemas, and the fields of other APIs' bodies, for OpenAPI."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import msgspec

from dragoman.parameters import ALIASES, FURTHER, MAX_BREAKER_CHARS, MAX_BREAKERS, PARAMETERS, Bounds, neutral_value
from dragoman.server.api import ModelProfile
from dragoman.server.apis.openai_wire.completions import MAX_TOKENS, CompletionBody
from dragoman.server.apis.openai_wire.conversation import FUNCTION_NAME, ChatBody
from dragoman.server.apis.openai_wire.fields import BOUNDS
from dragoman.server.apis.openai_wire.grammars import MAX_CHOICES
from dragoman.server.apis.openai_wire.keeping import RETENTIONS, TTL, TTL_EFFECT
from dragoman.server.apis.openai_wire.llamacpp_names import EFFECTS as LLAMA_EFFECTS
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.openai_wire.sampling import IGNORED, REFUSED
from dragoman.server.apis.openai_wire.thinking import BUDGETS
from dragoman.server.descriptions import (
    INTEGER,
    LENIENT_BOOLEAN,
    NON_EMPTY_TEXT,
    TEXT,
    Schema,
    an_object,
    any_of,
    array,
    described,
    nullable,
    range_of,
    ref,
    struct_schemas,
    without_null,
)
from dragoman.types import Limits

EFFECTS: Mapping[str, str] = {
    **{name: parameter.effect for name, parameter in PARAMETERS.items()},
    **{alias: f"another name of `{name}`" for alias, name in ALIASES.items()},
    **LLAMA_EFFECTS,
    **dict.fromkeys(BUDGETS[1:], "the same as `thinking_token_budget`, in llama.cpp's words"),
    "model": "which model answers; placeholders such as `default` or `dummy` mean the default model",
    "stream": "send the answer while it is generated",
    "stream_options": (
        "only with `stream: true`; `include_usage` adds a last chunk without choices and with usage; with "
        "`continuous_usage_stats` all have it"
    ),
    "max_tokens": "maximum number of tokens to generate; without it, up to the context",
    "min_tokens": "no end of sequence before this many tokens; at most `max_tokens`",
    "ignore_eos": "do not end at the end-of-sequence token; on `/v3` at most 4000 tokens then",
    "n": "choices per prompt",
    "best_of": (
        "number of sequences drawn; the `n` most likely are returned; the beam width on `/v3` and with "
        "`use_beam_search`; not with `stream` unless it equals `n`"
    ),
    "use_beam_search": "search with `best_of` or `n` beams instead of sampling",
    "top_k": "only the k most likely tokens; -1 means all, 0 as well (not on `/v3`)",
    "seed": "makes sampling repeatable; drawn at random when absent, except on `/v3`",
    "include_stop_str_in_output": "whether the stop text is part of the answer; on `/v3` always with `stream`",
    "truncate_prompt_tokens": (
        "keep only the last tokens of the prompt, which is what `echo` repeats; not with `suffix` or pictures"
    ),
    "prompt_logprobs": (
        "lists this many candidates for every token of the prompt; -1: all, if --max-logprobs allows as many"
    ),
    "priority": "requests with a smaller one are served before; the operator says how small it may be",
    "cache_salt": "the prefix cache is shared with requests of the same salt only; a text that is not empty",
    TTL: TTL_EFFECT,
    "prompt_cache_key": "requests of one key go to the same of several engines; without effect where there is one",
    "prompt_cache_retention": (
        "in_memory: nothing of the prompt is written to a disk; 24h: kept so long, where the server has "
        "--prefix-store-gb"
    ),
    "prompt_cache_options": (
        "`ttl`: how long the prompt is kept at least, where the server has --prefix-store-gb; `mode` has no effect"
    ),
    "repetition_detection": (
        "an answer whose last tokens are one pattern (of at most `max_pattern_size` tokens, at least `min_pattern_size`) "
        "`min_count` times in a row ends with `repetition`; reasoning that does so is ended, and the answer follows"
    ),
    "response_format": "constrains the answer: text, any JSON, JSON of a schema, or a regular expression",
    "guided_json": "the answer is JSON of this schema",
    "guided_regex": "the answer matches this regular expression",
    "guided_grammar": "the answer is a sentence of this Lark grammar",
    "guided_choice": "the answer is one of these texts",
    "structured_outputs": "the `guided_*` parameters in one object",
    "return_progress": "with `stream`: chunks tell how far the prompt is, and who is before it",
    "return_token_ids": "lists the token ids beside the text",
}

COMPLETION_EFFECTS: Mapping[str, str] = {
    **EFFECTS,
    "prompt": "one prompt or several, as text or as token ids; choices are numbered prompt by prompt",
    "max_tokens": "maximum number of tokens to generate; 0 only with `echo`",
    "suffix": "fill in the middle, if the model has the tokens for it",
    "echo": "the prompt is repeated before the completion",
    "logprobs": "the log-probabilities of each token and of this many alternatives",
    "detokenize": "false leaves the text empty and lists token ids instead",
    "return_tokens_as_token_ids": "`logprobs` calls tokens `token_id:N`, so that no two have one name",
    "add_special_tokens": "whether the tokenizer adds its own tokens to a text prompt",
}

CHAT_EFFECTS: Mapping[str, str] = {
    **EFFECTS,
    "messages": "the conversation; roles are the chat template's business",
    "max_completion_tokens": "the newer name of `max_tokens`, which it overrides",
    "logprobs": "log-probabilities of the generated tokens",
    "top_logprobs": (
        "with `logprobs`, this many likeliest tokens at each place; -1: all, if --max-logprobs allows as many"
    ),
    "tools": "the functions that the model may call",
    "tool_choice": "whether it calls: none, auto, required, one function, or some as `allowed_tools`",
    "functions": "the older form of `tools`; the answer has at most one `function_call`",
    "function_call": "the older form of `tool_choice`: none, auto, or one function",
    "parallel_tool_calls": "false: only the first call is answered",
    "continue_final_message": "the answer continues the last message, which must be the assistant's",
    "add_generation_prompt": "whether the template opens the assistant's turn",
    "chat_template_kwargs": "reaches the model's template",
    "documents": "reaches the model's template",
    "reasoning_effort": "reaches the model's template",
    "reasoning": (
        "`max_tokens` is `thinking_token_budget`, `effort` `reasoning_effort`; `enabled: false` switches thinking off, "
        "`exclude: true` leaves it out of the answer"
    ),
    "echo": "what the assistant said in the last message is repeated before the answer",
    "include_reasoning": "false: reasoning is left out of the answer",
}

_DEFAULTS_AS_DECLARED = (
    "num_beam_groups", "length_penalty", "early_stopping", "temperature", "top_p", "min_p", "typical_p", "min_tokens",
    "repetition_penalty", "frequency_penalty", "presence_penalty", "skip_special_tokens", "ignore_eos", "n",
    "spaces_between_special_tokens", *FURTHER, *ALIASES,
)  # fmt: skip
_DEFAULTS: Mapping[str, Any] = {
    **{name: neutral_value(name) for name in _DEFAULTS_AS_DECLARED},
    **dict.fromkeys(("stream", "use_beam_search", "include_stop_str_in_output", "echo", "return_progress"), False),
    **dict.fromkeys(("return_token_ids", "return_tokens_as_token_ids", "continue_final_message"), False),
    **dict.fromkeys(("detokenize", "add_special_tokens", "parallel_tool_calls", "add_generation_prompt"), True),
    "top_k": -1,
    "priority": 0,
    "top_logprobs": 0,
    "include_reasoning": True,
}


def defaults_of(profile: Profile) -> dict[str, Any]:
    """The values that say the same as leaving a field out; None = there is none."""
    changed = {
        "seed": profile.default_seed,
        "use_beam_search": None if profile.is_best_of_beam_width else False,
        "include_stop_str_in_output": None if profile.shows_stop_in_stream else False,
    }
    return {**_DEFAULTS, **profile.defaults, **changed}


# --- bodies -----------------------------------------------------------------------------------------------------------

_TOKEN_ID = {"type": "integer", "minimum": 0}
_EMPTY: Schema = {"const": ""}
_SIZES = Limits()  # of which only those are used here that no option sets
_WORD = {**NON_EMPTY_TEXT, "maxLength": _SIZES.max_word_chars}
_OWN_TYPES: Mapping[str, Schema] = {
    "logit_bias": {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,18}$"},
        "maxProperties": _SIZES.max_token_ids,
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    },
    "stop_token_ids": array(_TOKEN_ID, maxItems=_SIZES.max_token_ids),
    "allowed_token_ids": array(_TOKEN_ID, minItems=1, maxItems=_SIZES.max_token_ids),
    "bad_words": array(_WORD, maxItems=_SIZES.max_bad_words),
    "dry_sequence_breakers": array({**NON_EMPTY_TEXT, "maxLength": MAX_BREAKER_CHARS}, maxItems=MAX_BREAKERS),
    "guided_choice": array(NON_EMPTY_TEXT, minItems=1, maxItems=MAX_CHOICES),
    "guided_regex": NON_EMPTY_TEXT,
    "guided_grammar": NON_EMPTY_TEXT,
    "prompt_cache_retention": {"enum": list(RETENTIONS)},
    "function_call": any_of({"enum": ["none", "auto"]}, {"$ref": "#/components/schemas/NamedFunction"}),
    "tool_choice": any_of({"enum": ["none", "auto", "required"]}, {"$ref": "#/components/schemas/ChosenTool"}),
}
"""Schemas for what the checks after decoding narrow down, where no table of theirs says it."""


def shared_schemas() -> dict[str, Schema]:
    shared = struct_schemas([CompletionBody, ChatBody])
    shared["ChatMessage"]["required"] = ["role"]
    shared["ChatMessage"]["properties"]["role"] = NON_EMPTY_TEXT
    shared["ContentPart"] = _content_part(shared["ContentPart"])
    shared["Tool"]["properties"]["type"] = nullable({"const": "function"})
    shared["ToolFunction"]["properties"]["name"] = {"type": "string", "pattern": f"^{FUNCTION_NAME.pattern}$"}
    del shared["CompletionBody"], shared["ChatBody"]
    return shared


def _content_part(part: Schema) -> Schema:
    fields = part["properties"]
    kinds = {kind: without_null(fields[kind]) for kind in ("text", "refusal", "image_url")}
    parts = (an_object({"type": {"const": kind}, kind: schema}) for kind, schema in kinds.items())
    return {"description": part["description"], **any_of(*parts)}


def completion_body(profile: Profile, model: ModelProfile) -> Schema:
    text = NON_EMPTY_TEXT if profile.refuses_empty_prompt else TEXT
    ids = array(_TOKEN_ID, minItems=1)
    prompts = any_of(text, ids, array(any_of(text, ids), minItems=1, maxItems=model.limits.max_prompts))
    body = struct_body(
        CompletionBody,
        COMPLETION_EFFECTS,
        profile,
        model,
        needed={"prompt": prompts},
        defaults={"max_tokens": profile.default_max_tokens},
        own={"max_tokens": {**INTEGER, **range_of(replace(MAX_TOKENS, low=0))}},
        text=about_fields(REFUSED, IGNORED, is_lenient=not profile.has_strict_types),
    )
    body["properties"]["top_k"]["anyOf"].append(_EMPTY)
    return body


def chat_body(profile: Profile, model: ModelProfile, defaults: Mapping[str, Any]) -> Schema:
    """The body of a conversation. `defaults`: by parameter, where they are not the usual ones."""
    limits = model.limits
    body = struct_body(
        ChatBody,
        CHAT_EFFECTS,
        profile,
        model,
        needed={"messages": array(ref("ChatMessage"), minItems=1, maxItems=limits.max_messages)},
        defaults={"logprobs": False, **defaults},
        own={
            "tools": array(ref("Tool"), maxItems=limits.max_tools),
            "functions": array(ref("ToolFunction"), maxItems=limits.max_tools),
        },
        text=about_fields(REFUSED, IGNORED, is_lenient=not profile.has_strict_types),
    )
    body["properties"]["top_k"]["anyOf"].append(_EMPTY)
    return body


def about_fields(refused: Mapping[str, str], ignored: Iterable[str], *, is_lenient: bool, also: str = "") -> str:
    """The description of a body. `also`: what is refused besides. `is_lenient`: numbers may come as strings."""
    words = [
        "null means not given, for every field.",
        'Numbers may also come as strings (`"256"`).' if is_lenient else "",
        f"Refused by name: {'; '.join(f'`{name}`: {reason}' for name, reason in refused.items())}{also}.",
        "Accepted without effect, like every unknown field, and named in `x-dragoman-ignored`: "
        f"{', '.join(f'`{name}`' for name in ignored)}.",
    ]
    return " ".join(word for word in words if word)


def field_schemas(
    body: Schema,
    effects: Mapping[str, str],
    profile: Profile,
    model: ModelProfile,
    *,
    required: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
    own: Mapping[str, Schema] | None = None,
) -> dict[str, Schema]:
    """The fields of any API's body. `own`: schemas that replace those of the types."""
    values = {**defaults_of(profile), **(defaults or {})}
    properties: dict[str, Schema] = {}
    for name, typed in body["properties"].items():
        found = (own or {}).get(name)
        schema = _narrowed(name, without_null(typed), profile, model) if found is None else found
        shown = schema if name in required else nullable(schema)
        properties[name] = described(shown, effects.get(name, ""), values.get(name))
    idle = {name: {"description": f"without effect: {reason}"} for name, reason in profile.ignored.items()}
    return {**idle, **properties}


def struct_body(
    kind: type[msgspec.Struct],
    effects: Mapping[str, str],
    profile: Profile,
    model: ModelProfile,
    *,
    needed: Mapping[str, Schema],
    defaults: Mapping[str, Any] | None = None,
    own: Mapping[str, Schema] | None = None,
    text: str = "",
) -> Schema:
    """The schema of a body that is read as a `kind`; the rest is as of `field_schemas`.

    `needed`: schemas of the fields that it must have, besides a `model` that the profile requires.
    `text`: a description instead of the Struct's.
    """
    made = struct_schemas([kind])[kind.__name__]
    required = {**needed, **({"model": TEXT} if profile.requires_model else {})}
    replaced = {**(own or {}), **required}
    fields = field_schemas(made, effects, profile, model, required=required, defaults=defaults, own=replaced)
    head = {"type": "object", "description": text} if text else made
    return {**head, "properties": fields, "required": list(required)}


def _narrowed(name: str, schema: Schema, profile: Profile, model: ModelProfile) -> Schema:
    """The schema with everything that is checked beyond the type."""
    schema = deepcopy(_OWN_TYPES.get(name, schema))
    if name == "stop":
        limit = profile.max_stop_strings
        operators = model.limits.max_stop_strings
        most = operators if limit is None else min(limit, operators)
        return any_of(_WORD, array(_WORD, maxItems=most))
    if schema.get("type") == "boolean" and not profile.has_strict_types:
        return LENIENT_BOOLEAN
    if name == "early_stopping" and not profile.has_strict_types:
        return any_of(*LENIENT_BOOLEAN["anyOf"], {"const": "never"})
    if name == "cache_salt":
        return {**schema, "minLength": 1}
    bounds = _bounds(name, schema, profile, model)
    if bounds is not None:
        schema |= range_of(bounds)
    if name == "top_p" and profile.refuses_zero_top_p:
        del schema["minimum"]
        schema["exclusiveMinimum"] = 0.0
    if name == "top_k" and profile.name == "v3":
        schema["not"] = {"const": 0}
    return schema


def _bounds(name: str, schema: Schema, profile: Profile, model: ModelProfile) -> Bounds | None:
    limits = model.limits
    if name in ("n", "n_cmpl", "best_of"):
        return Bounds(1, limits.max_best_of - (1 if profile.is_best_of_limit_exclusive else 0))
    if name in ("logprobs", "n_probs", "top_logprobs", "prompt_logprobs") and schema.get("type") == "integer":
        takes_all = name in ("top_logprobs", "prompt_logprobs") and 0 < model.vocab_size <= limits.max_logprobs
        return Bounds(-1 if takes_all else 0, limits.max_logprobs)
    if name == "priority":
        return Bounds(limits.min_priority, BOUNDS[name].high)
    return profile.bounds.get(name) or BOUNDS.get(name)
