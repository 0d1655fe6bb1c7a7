"""Ollama's API: its operations, and how it is set up for a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.server.api import JSON_MEDIA_TYPE, NDJSON_MEDIA_TYPE, Dialects, ModelProfile
from dragoman.server.apis.ollama.describe import schemas
from dragoman.server.apis.ollama.dialects import ChatDialect, GenerateDialect, answer_unload
from dragoman.server.apis.ollama.embed import EMBED, EMBEDDINGS
from dragoman.server.apis.ollama.errors import ERRORS, OllamaError
from dragoman.server.apis.ollama.models import running, show, tags, version
from dragoman.server.apis.ollama.names import model_meant
from dragoman.server.apis.ollama.pull import pull
from dragoman.server.apis.ollama.schema import (
    OllamaChatted,
    OllamaEmbedded,
    OllamaEmbedding,
    OllamaGenerated,
    OllamaPulled,
    OllamaRunning,
    OllamaShown,
    OllamaTags,
    OllamaVersion,
)
from dragoman.server.apis.openai_wire.pooling import TextsDialect
from dragoman.server.describe.answers import LISTING, READING, REFUSING, Answer, Content, json_answer
from dragoman.server.describe.components import GENERATED, IGNORED, MESSAGES, QUESTION, parameter
from dragoman.server.describe.json_schema import TEXT, ref
from dragoman.server.operations import (
    AnswerCall,
    AnswerOperation,
    Api,
    GenerateOperation,
    Operation,
    PoolingOperation,
    not_offered,
)
from dragoman.server.security.scopes import Scope

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


def _generates(name: str, kind: Any, asked: str, example: Mapping[str, Any], summary: str) -> GenerateOperation:
    """`asked`: without it, there is nothing to generate."""
    content: Content = {JSON_MEDIA_TYPE: kind, NDJSON_MEDIA_TYPE: (kind, OllamaError)}
    return GenerateOperation(
        path=f"/api/{name}",
        tag=TAG,
        summary=summary,
        description=f"Without {asked}, the model is loaded, or unloaded with `keep_alive: 0`.",
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
