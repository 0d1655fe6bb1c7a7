"""Anthropic's Messages API: its operations, and how it is set up for a model; the served models for its clients.

On the event loop. Source: Anthropic API reference, messages and models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import msgspec

from dragoman.server.api import (
    JSON_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    Dialects,
    HttpCall,
    ModelProfile,
    json_reply,
    model_of_body,
)
from dragoman.server.apis.anthropic.batches import (
    BATCH_OPERATIONS,
    BATCH_PARAMETERS,
    PAGE,
    Page,
    batch_schemas,
    rfc3339,
)
from dragoman.server.apis.anthropic.conversation import ALLOWED, CHOICES, IMAGE_TYPES, TOOL_NAME
from dragoman.server.apis.anthropic.messages import EVENTS, AnthropicMessage, MessagesDialect, prompt_of, read_body
from dragoman.server.apis.anthropic.request import (
    ANTHROPIC,
    DISPLAYS,
    EFFORTS,
    ERRORS,
    IGNORED,
    MIN_BUDGET_TOKENS,
    REFUSED,
    REQUEST_ID,
    SERVICE_TIERS,
    THINKING_TYPES,
    TTLS,
    VERSION,
    AnthropicError,
    ForEitherClient,
    MessagesBody,
    PromptBody,
    cache_ttl,
    named_without_effect,
    request_id_header,
)
from dragoman.server.apis.openai_wire.describe import EFFECTS, about_fields, struct_body
from dragoman.server.apis.openai_wire.errors import ERRORS as OPENAI_ERRORS
from dragoman.server.apis.openai_wire.keeping import NOT_KEPT
from dragoman.server.apis.openai_wire.routes import V1_MODELS
from dragoman.server.batches.desk import page_of
from dragoman.server.descriptions import (
    COUNTING,
    FINDING,
    GENERATED,
    INTEGER,
    LENIENT_BOOLEAN,
    LISTING,
    MESSAGES,
    NON_EMPTY_TEXT,
    TEXT,
    Answer,
    Schema,
    an_object,
    any_of,
    array,
    header,
    json_answer,
    merged,
    nullable,
    parameter,
    range_of,
    ref,
    struct_schemas,
    without_null,
)
from dragoman.server.descriptions import IGNORED as IGNORED_HEADER
from dragoman.server.generation.tokenizing_service import tokenizing_service
from dragoman.server.model_facts import ModelFacts, facts_of_all, facts_of_name
from dragoman.server.operations import AnswerOperation, Api, GenerateOperation, Server, looked_at
from dragoman.server.responder import note_ignored
from dragoman.server.security.callers import Scope
from dragoman.types import Limits

# --- models -----------------------------------------------------------------------------------------------------------

MODEL_PARAMETERS: Mapping[str, dict[str, Any]] = {
    "anthropic-version": parameter(
        "header", VERSION, "any version: the answer has the shape that Anthropic's clients read", TEXT
    ),
    "models_limit_query": parameter(
        "query",
        "limit",
        f"with `{VERSION}`: how many models a page has",
        {"type": "integer", "minimum": 1, "maximum": PAGE.most, "default": PAGE.usual},
    ),
    "models_after_query": parameter("query", "after_id", f"with `{VERSION}`: the page after this model", TEXT),
    "models_before_query": parameter("query", "before_id", f"with `{VERSION}`: the page before this model", TEXT),
}


class AnthropicModel(msgspec.Struct, tag_field="type", tag="model"):
    """One model. `max_input_tokens`, `max_tokens`: its context. `created_at`: when it was loaded."""

    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int | None
    max_tokens: int | None


class AnthropicModelList(Page):
    """One page of models."""

    data: list[AnthropicModel]


def _model(facts: ModelFacts) -> AnthropicModel:
    created, length = rfc3339(facts.created_s), facts.max_model_len
    return AnthropicModel(facts.name, facts.name, created, "active", length, length)


def for_anthropic_too(operation: AnswerOperation) -> AnswerOperation:
    """OpenAI's operation on a list of models or on one, with Anthropic's shape for its clients."""
    is_list = "{" not in operation.path

    async def answer(http: HttpCall, server: Server) -> Any:
        if VERSION not in http.headers:
            return await operation.answer(http, server)
        if is_list:
            await looked_at(server)
            all_models = [_model(facts) for facts in facts_of_all(server.models)]
            made: Any = AnthropicModelList.of(*page_of(all_models, http.query, PAGE))
        else:
            made = _model(facts_of_name(server.models, http.path_params["name"]))
        return json_reply(200, made, request_id_header(http))

    kind = AnthropicModelList if is_list else AnthropicModel
    names = tuple(MODEL_PARAMETERS) if is_list else ("anthropic-version",)
    theirs = ERRORS.answers((*LISTING, "invalid_parameter") if is_list else FINDING)
    # Either client may meet the status.
    shared = [kind for kind, status in OPENAI_ERRORS.statuses.items() if status in theirs]
    return replace(
        operation,
        answers=merged(operation.answers, {200: json_answer(kind)}, OPENAI_ERRORS.answers(shared), theirs),
        parameters=(*operation.parameters, *names),
        answer=answer,
    )


# --- schemas ----------------------------------------------------------------------------------------------------------

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
    del parts["MessagesBody"], parts["PromptBody"]
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
    messages = {"messages": array(ref("InputMessage"), minItems=1, maxItems=model.limits.max_messages)}
    max_tokens = {"max_tokens": {**INTEGER, **range_of(ANTHROPIC.bounds["max_tokens"])}}
    body = partial(
        struct_body,
        effects={**{name: f"without effect: {reason}" for name, reason in IGNORED.items()}, **_EFFECTS},
        profile=ANTHROPIC,
        model=model,
        defaults={"top_k": 0},
        own=_own_types(model.limits),
        text=about_fields(REFUSED, IGNORED, is_lenient=False),
    )
    return {
        **parts,
        "MessagesRequest": body(MessagesBody, needed={**max_tokens, **messages}),
        "CountTokensRequest": body(PromptBody, needed=messages),
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


def _own_types(limits: Limits) -> dict[str, Schema]:
    word = {**NON_EMPTY_TEXT, "maxLength": limits.max_word_chars}
    text = an_object({"type": {"const": "text"}, "text": TEXT})
    return {
        "tools": array(ref("CustomTool"), maxItems=limits.max_tools),
        "system": any_of(TEXT, array(text, maxItems=limits.max_messages)),
        "stop_sequences": array(word, maxItems=limits.max_stop_strings),
        "service_tier": {"enum": list(SERVICE_TIERS)},
    }


# --- the API ----------------------------------------------------------------------------------------------------------

NAME = "anthropic.messages"

_TAG = "Anthropic Messages"
_PROMPT = {"model": "default", "system": "Answer briefly.", "messages": MESSAGES}


def set_up(profile: ModelProfile) -> Dialects:
    return {NAME: MessagesDialect(profile)}


async def count_tokens(http: HttpCall, server: Server) -> object:
    """Count the tokens of a prompt as the model would see it. Raises: ServerError."""
    raw, body = read_body(http, PromptBody)
    model = server.models.find(body.model)
    cache_ttl(body)  # of which nothing but its faults matters
    shown = prompt_of(raw, body, model.limits)
    keeps_prompts = model.profile.keeps_prompts  # what a message is told, counting it is told as well
    idle = [*named_without_effect(raw, body, is_greedy=False, keeps_prompts=keeps_prompts), *shown.ignored]
    headers = note_ignored(server.switches.for_call(http.headers), idle)
    count = len((await tokenizing_service(model).tokenize(shown.prompt)).token_ids)
    return json_reply(200, TokenCount(count), {**headers, **request_id_header(http)})


class TokenCount(msgspec.Struct):
    """The answer of /v1/messages/count_tokens."""

    input_tokens: int


API = Api(
    name="anthropic",
    title="Anthropic",
    owns=("/v1/messages",),
    set_up=set_up,
    teller=lambda dialects: ERRORS,
    schemas=lambda profile: {**schemas(profile), **batch_schemas()},
    parameters={**MODEL_PARAMETERS, **BATCH_PARAMETERS},
    headers={REQUEST_ID: header("the same as `x-request-id`, for Anthropic's clients")},
    operations=(
        GenerateOperation(
            path="/v1/messages",
            tag=_TAG,
            summary="The next message of a conversation, as Anthropic's API answers",
            description="Streams are server-sent events, each with its name, from `message_start` to `message_stop`.",
            answers=ERRORS.beside(
                Answer(
                    "the message",
                    {JSON_MEDIA_TYPE: AnthropicMessage, SSE_MEDIA_TYPE: (*EVENTS, AnthropicError)},
                    (REQUEST_ID, *GENERATED),
                )
            ),
            body={JSON_MEDIA_TYPE: ref("MessagesRequest")},
            example={**_PROMPT, "max_tokens": 32, "temperature": 0, "stream": True},
            dialect=NAME,
            model=model_of_body,
        ),
        AnswerOperation(
            path="/v1/messages/count_tokens",
            tag=_TAG,
            summary="How many tokens a prompt has",
            answers=ERRORS.beside(json_answer(TokenCount, "the count", REQUEST_ID, *IGNORED_HEADER), COUNTING),
            body={JSON_MEDIA_TYPE: ref("CountTokensRequest")},
            example=_PROMPT,
            scope=Scope.INFERENCE,
            answer=count_tokens,
        ),
        *BATCH_OPERATIONS,
    ),
    joint=tuple(for_anthropic_too(operation) for operation in V1_MODELS),
    joint_tellers={"/v1": ForEitherClient},
)
