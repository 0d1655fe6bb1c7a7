"""Ollama's API: its operations, how it is set up for a model, and what of it is not offered here."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

from dragoman.errors import UnsupportedFeature
from dragoman.server.api import JSON_MEDIA_TYPE, NDJSON_MEDIA_TYPE, Dialects, HttpCall, ModelProfile
from dragoman.server.apis.ollama.describe import schemas
from dragoman.server.apis.ollama.dialects import ChatDialect, GenerateDialect, answer_unload
from dragoman.server.apis.ollama.embed import EmbedDialect, EmbeddingsDialect
from dragoman.server.apis.ollama.errors import ERRORS, OllamaError, OllamaErrors
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
from dragoman.server.describe.answers import LOADING, Answer, Answers, Content, json_answer, merged
from dragoman.server.describe.components import GENERATED, IGNORED, MESSAGES, QUESTION
from dragoman.server.describe.json_schema import ref
from dragoman.server.operations import AnswerOperation, Api, GenerateOperation, Operation, PoolingOperation, Server
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
"""What Ollama does with models besides running and pulling them, and why this server does not."""

_TELLER = OllamaErrors()
_OWNED = ("generate", "chat", "embed", "embeddings", "tags", "show", "ps", "version")


def set_up(profile: ModelProfile) -> Dialects:
    """Its dialects for a model."""
    return {
        f"{NAME}.generate": GenerateDialect(profile),
        f"{NAME}.chat": ChatDialect(profile),
        f"{NAME}.embed": EmbedDialect(profile),
        f"{NAME}.embeddings": EmbeddingsDialect(profile),
    }


def _generated(kind: Any) -> Answers:
    content: Content = {JSON_MEDIA_TYPE: kind, NDJSON_MEDIA_TYPE: (kind, OllamaError)}
    return merged({200: Answer("the answer, or its lines", content, GENERATED)}, ERRORS.answers())


def _embedded(kind: Any) -> Answers:
    return merged({200: json_answer(kind, "the embeddings", *IGNORED)}, ERRORS.answers())


_PULLED = Answer(
    "it is here, or how far it is",
    {JSON_MEDIA_TYPE: OllamaPulled, NDJSON_MEDIA_TYPE: (OllamaPulled, OllamaError)},
    IGNORED,
)
_PULL_ERRORS = (
    "invalid_payload",
    "invalid_parameter",
    "unsupported",
    "too_large",
    "unauthorized",
    "overloaded",
    "server_error",
)
_generates = partial(GenerateOperation, tag=TAG, model=model_meant)
_writes = partial(_generates, before=answer_unload)
_embeds = partial(PoolingOperation, tag=TAG, model=model_meant)
_lists = partial(AnswerOperation, tag=TAG, method="GET", scope=Scope.INFERENCE)


def _refused(method: str, path: str, reason: str) -> Operation:
    name = path.removeprefix("/api/").partition("/")[0]

    async def refuse(http: HttpCall, server: Server) -> NoReturn:
        raise UnsupportedFeature(f"{name} is not offered here: {reason}")

    return AnswerOperation(
        method=method,
        path=path,
        tag=TAG,
        summary=f"Not offered: {reason}",
        answers=ERRORS.answers(("unsupported", "unauthorized")),
        parameters=("digest_path",) if "{digest}" in path else (),
        scope=Scope.INFERENCE,
        answer=refuse,
    )


API = Api(
    name=NAME,
    title="Ollama",
    owns=tuple(f"/api/{name}" for name in (*_OWNED, "pull", "push", "create", "copy", "delete", "blobs")),
    set_up=set_up,
    teller=lambda dialects: _TELLER,
    schemas=schemas,
    operations=(
        _writes(
            path="/api/generate",
            summary="Answer a prompt; a line for each piece unless `stream` is false",
            description="Without a prompt, the model is loaded, or unloaded with `keep_alive: 0`.",
            answers=_generated(OllamaGenerated),
            body={JSON_MEDIA_TYPE: ref("OllamaGenerateRequest")},
            example={"model": _MODEL, "prompt": QUESTION, "options": {"num_predict": 32}},
            dialect=f"{NAME}.generate",
        ),
        _writes(
            path="/api/chat",
            summary="Go on with a conversation; a line for each piece unless `stream` is false",
            description="Without messages, the model is loaded, or unloaded with `keep_alive: 0`.",
            answers=_generated(OllamaChatted),
            body={JSON_MEDIA_TYPE: ref("OllamaChatRequest")},
            example={"model": _MODEL, "messages": MESSAGES, "options": {"num_predict": 32}},
            dialect=f"{NAME}.chat",
        ),
        _embeds(
            path="/api/embed",
            summary="Embed texts",
            answers=_embedded(OllamaEmbedded),
            body={JSON_MEDIA_TYPE: ref("OllamaEmbedRequest")},
            example={"model": _MODEL, "input": [QUESTION]},
            dialect=f"{NAME}.embed",
        ),
        _embeds(
            path="/api/embeddings",
            summary="Embed one text, as before there was `/api/embed`",
            answers=_embedded(OllamaEmbedding),
            body={JSON_MEDIA_TYPE: ref("OllamaEmbeddingsRequest")},
            example={"model": _MODEL, "prompt": QUESTION},
            dialect=f"{NAME}.embeddings",
        ),
        _lists(
            path="/api/tags",
            summary="The models that calls may name",
            answers=merged({200: json_answer(OllamaTags, "the models")}, ERRORS.answers(("unauthorized",))),
            answer=tags,
        ),
        _lists(
            path="/api/ps",
            summary="The loaded models, and until when they stay",
            answers=merged({200: json_answer(OllamaRunning, "the models")}, ERRORS.answers(("unauthorized",))),
            answer=running,
        ),
        _lists(
            path="/api/version",
            summary="The version of Ollama whose API this is",
            answers=merged({200: json_answer(OllamaVersion, "the version")}, ERRORS.answers(("unauthorized",))),
            answer=version,
        ),
        AnswerOperation(
            method="POST",
            path="/api/show",
            tag=TAG,
            summary="What a model is",
            answers=merged(
                {200: json_answer(OllamaShown, "the description", *IGNORED)},
                ERRORS.answers(
                    ("invalid_payload", "invalid_parameter", "too_large", "unauthorized", "not_found", *LOADING)
                ),
            ),
            body={JSON_MEDIA_TYPE: ref("OllamaShowRequest")},
            example={"model": _MODEL},
            scope=Scope.INFERENCE,
            answer=show,
        ),
        AnswerOperation(
            method="POST",
            path="/api/pull",
            tag=TAG,
            summary="Bring a model of the hub to this machine; a line for each step unless `stream` is false",
            description="Needs `--allow-pull`, but for models that are served. What was brought is not loaded by this.",
            answers=merged({200: _PULLED}, ERRORS.answers(_PULL_ERRORS)),
            body={JSON_MEDIA_TYPE: ref("OllamaPullRequest")},
            example={"model": _MODEL},
            scope=Scope.MANAGEMENT,
            answer=pull,
        ),
        *(_refused(method, path, reason) for (method, path), reason in NOT_OFFERED.items()),
    ),
    parameters={
        "digest_path": {
            "in": "path",
            "name": "digest",
            "required": True,
            "description": "of a file",
            "schema": {"type": "string"},
        }
    },
)
