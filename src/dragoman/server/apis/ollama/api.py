"""Ollama's API: its operations, their bodies as schemas, and how it is set up for a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dragoman.parameters import Bounds
from dragoman.server.api import JSON_MEDIA_TYPE, NDJSON_MEDIA_TYPE, Dialects, ModelProfile
from dragoman.server.apis.ollama.dialects import (
    EMBED,
    EMBEDDINGS,
    ChatDialect,
    GenerateDialect,
    OllamaEmbedBody,
    OllamaEmbedded,
    OllamaEmbedding,
    OllamaEmbeddingsBody,
    answer_unload,
)
from dragoman.server.apis.ollama.encoder import OllamaChatted, OllamaGenerated
from dragoman.server.apis.ollama.models import (
    OllamaPullBody,
    OllamaPulled,
    OllamaRunning,
    OllamaShowBody,
    OllamaShown,
    OllamaTags,
    OllamaVersion,
    model_meant,
    pull,
    running,
    show,
    tags,
    version,
)
from dragoman.server.apis.ollama.request import (
    ERRORS,
    LEVELS,
    OPTIONS,
    WORDS,
    OllamaChatBody,
    OllamaError,
    OllamaGenerateBody,
    OllamaOptions,
)
from dragoman.server.apis.openai_wire.describe import EFFECTS, struct_body
from dragoman.server.apis.openai_wire.pooling import TextsDialect
from dragoman.server.descriptions import (
    GENERATED,
    IGNORED,
    INTEGER,
    LENIENT_BOOLEAN,
    LISTING,
    MESSAGES,
    QUESTION,
    READING,
    REFUSING,
    TEXT,
    Answer,
    Content,
    Schema,
    any_of,
    described,
    json_answer,
    parameter,
    range_of,
    ref,
    struct_schemas,
)
from dragoman.server.operations import (
    AnswerCall,
    AnswerOperation,
    Api,
    GenerateOperation,
    Operation,
    PoolingOperation,
    not_offered,
)
from dragoman.server.security.callers import Scope

_TEXTS: Mapping[str, str] = {
    "model": "the model, with or without `:latest`",
    "stream": "answer line by line",
    "keep_alive": "how long the model stays after this call, where models come and go: seconds, or a duration as `5m`",
    "truncate": "true is named as without effect: a prompt that is too long is refused",
    "shift": "false: the answer ends where the context is full, even if the server shifts contexts",
    "logprobs": "tell the log-probabilities of the tokens",
}
_OTHER_TEXTS: Mapping[str, str] = {
    **_TEXTS,
    "input": "one text or several",
    "prompt": "the text",
    "truncate": "false: a text that is too long is refused",
    "dimensions": "keep this number of the first components",
    "options": "without effect",
    "name": "an older name of `model`",
    "verbose": "true is named as without effect",
    "insecure": "true is named as without effect",
    "stream": "tell how far it is, line by line",
}
_OPTION_EFFECTS = {
    **EFFECTS,
    "num_predict": "maximum number of tokens to generate; 0, -1 and -2: up to the context",
    "num_keep": "tokens of the prompt that stay when a full context is shifted; -1: all",
}


def schemas(profile: ModelProfile) -> dict[str, Schema]:
    made = struct_schemas((OllamaGenerateBody, OllamaChatBody))
    own: dict[str, Schema] = {
        "top_logprobs": INTEGER | range_of(Bounds(0, profile.limits.max_logprobs)),
        "options": ref("OllamaRequestOptions"),
        "format": {"anyOf": [{"enum": ["json", ""]}, {"type": "object"}]},
        "think": {"anyOf": [LENIENT_BOOLEAN, {"enum": list(LEVELS)}]},
    }
    defaults = {"stream": True, "top_logprobs": None}
    body = partial(
        struct_body, effects=_TEXTS, profile=WORDS, model=profile, needed={"model": TEXT}, defaults=defaults, own=own
    )
    return {
        **{name: schema for name, schema in made.items() if name.startswith("Ollama")},
        "OllamaGenerateRequest": body(OllamaGenerateBody),
        "OllamaChatRequest": body(OllamaChatBody),
        "OllamaRequestOptions": struct_body(OllamaOptions, _OPTION_EFFECTS, OPTIONS, profile, needed={}),
        **_other_bodies(profile),
    }


def _other_bodies(profile: ModelProfile) -> dict[str, Schema]:
    model, older_name = {"model": TEXT}, {"name": TEXT}
    pulled = {"model": described(TEXT, "ORG/NAME on the hub, with or without `hf.co/` before it, or a served model")}
    body = partial(
        struct_body,
        effects=_OTHER_TEXTS,
        profile=replace(WORDS, bounds={"dimensions": Bounds(1)}),
        model=profile,
        defaults={"truncate": True, "stream": True},
        own={"options": {"type": "object"}, "prompt": TEXT},
    )
    return {
        "OllamaEmbedRequest": body(OllamaEmbedBody, needed=model),
        "OllamaEmbeddingsRequest": body(OllamaEmbeddingsBody, needed=model),
        "OllamaShowRequest": any_of(body(OllamaShowBody, needed=model), body(OllamaShowBody, needed=older_name)),
        "OllamaPullRequest": any_of(body(OllamaPullBody, needed=pulled), body(OllamaPullBody, needed=older_name)),
    }


# --- the API ----------------------------------------------------------------------------------------------------------

NAME = "ollama"
TAG = "Ollama"
_MODEL = "model"  # the default name, for clients that take any model

NOT_OFFERED: dict[tuple[str, str], str] = {
    ("POST", "/api/push"): "models are not pushed anywhere",
    ("POST", "/api/create"): "models are not made here",
    ("POST", "/api/copy"): "models are not copied; the operator gives them their names",
    ("DELETE", "/api/delete"): "models are not deleted; the operator chooses them",
    ("POST", "/api/blobs/{digest}"): "no files are kept here",
}
"""Ollama's operations that are refused, and why."""

_OWNED = ("generate", "chat", "embed", "embeddings", "tags", "show", "ps", "version")


def set_up(profile: ModelProfile) -> Dialects:
    return {
        f"{NAME}.generate": GenerateDialect(profile),
        f"{NAME}.chat": ChatDialect(profile),
        f"{NAME}.embed": TextsDialect(profile, EMBED),
        f"{NAME}.embeddings": TextsDialect(profile, EMBEDDINGS),
    }


def _generates(name: str, kind: Any, field: str, example: Mapping[str, Any], summary: str) -> GenerateOperation:
    """`asked`: without it, there is nothing to generate."""
    content: Content = {JSON_MEDIA_TYPE: kind, NDJSON_MEDIA_TYPE: (kind, OllamaError)}
    return GenerateOperation(
        path=f"/api/{name}",
        tag=TAG,
        summary=summary,
        description=f"Without {field}, the model is loaded, or unloaded with `keep_alive: 0`.",
        answers=ERRORS.beside(Answer("the answer, or its lines", content, GENERATED)),
        example={"model": _MODEL, **example, "options": {"num_predict": 32}},
        dialect=f"{NAME}.{name}",
        model=model_meant,
        before=answer_unload,
        **_body_of(name),
    )


def _embeds(name: str, kind: Any, example: Mapping[str, Any], summary: str) -> PoolingOperation:
    return PoolingOperation(
        path=f"/api/{name}",
        tag=TAG,
        summary=summary,
        answers=ERRORS.beside(json_answer(kind, "the embeddings", *IGNORED)),
        example={"model": _MODEL, **example},
        dialect=f"{NAME}.{name}",
        model=model_meant,
        **_body_of(name),
    )


def _lists(name: str, answer: AnswerCall, kind: Any, words: str, summary: str) -> AnswerOperation:
    return AnswerOperation(
        method="GET",
        path=f"/api/{name}",
        tag=TAG,
        summary=summary,
        answers=ERRORS.beside(json_answer(kind, words), LISTING),
        scope=Scope.INFERENCE,
        answer=answer,
    )


def _body_of(name: str) -> dict[str, Any]:
    return {"body": {JSON_MEDIA_TYPE: ref(f"Ollama{name.title()}Request")}}


def _refused(method: str, path: str, reason: str) -> Operation:
    name = path.removeprefix("/api/").partition("/")[0]
    return not_offered(
        f"{name} is not offered here: {reason}",
        method=method,
        path=path,
        tag=TAG,
        summary=f"Not offered: {reason}",
        answers=ERRORS.answers(REFUSING),
        parameters=("digest_path",) if "{digest}" in path else (),
    )


_PULLED = Answer(
    "it is here, or how far it is",
    {JSON_MEDIA_TYPE: OllamaPulled, NDJSON_MEDIA_TYPE: (OllamaPulled, OllamaError)},
    IGNORED,
)
_PULL_ERRORS = (
    "invalid_payload", "invalid_parameter", "unsupported", "too_large", "unauthorized", "overloaded", "server_error",
)  # fmt: skip

API = Api(
    name=NAME,
    title="Ollama",
    owns=tuple(f"/api/{name}" for name in (*_OWNED, "pull", "push", "create", "copy", "delete", "blobs")),
    set_up=set_up,
    teller=lambda dialects: ERRORS,
    schemas=schemas,
    operations=(
        _generates(
            "generate",
            OllamaGenerated,
            "a prompt",
            {"prompt": QUESTION},
            "Answer a prompt; a line for each piece unless `stream` is false",
        ),
        _generates(
            "chat",
            OllamaChatted,
            "messages",
            {"messages": MESSAGES},
            "Go on with a conversation; a line for each piece unless `stream` is false",
        ),
        _embeds("embed", OllamaEmbedded, {"input": [QUESTION]}, "Embed texts"),
        _embeds(
            "embeddings", OllamaEmbedding, {"prompt": QUESTION}, "Embed one text, as before there was `/api/embed`"
        ),
        _lists("tags", tags, OllamaTags, "the models", "The models that calls may name"),
        _lists("ps", running, OllamaRunning, "the models", "The loaded models, and until when they stay"),
        _lists("version", version, OllamaVersion, "the version", "The version of Ollama whose API this is"),
        AnswerOperation(
            path="/api/show",
            tag=TAG,
            summary="What a model is",
            answers=ERRORS.beside(json_answer(OllamaShown, "the description", *IGNORED), READING),
            example={"model": _MODEL},
            scope=Scope.INFERENCE,
            answer=show,
            **_body_of("show"),
        ),
        AnswerOperation(
            path="/api/pull",
            tag=TAG,
            summary="Bring a model of the hub to this machine; a line for each step unless `stream` is false",
            description="Needs `--allow-pull`, but for models that are served. What was brought is not loaded by this.",
            answers=ERRORS.beside(_PULLED, _PULL_ERRORS),
            example={"model": _MODEL},
            scope=Scope.MANAGEMENT,
            answer=pull,
            **_body_of("pull"),
        ),
        *(_refused(method, path, reason) for (method, path), reason in NOT_OFFERED.items()),
    ),
    parameters={"digest_path": parameter("path", "digest", "of a file", TEXT)},
)
