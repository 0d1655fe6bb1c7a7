"""LM Studio's own API below `/api/v0`: OpenAI's operations with statistics, and its list of models."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import UNSET

from dragoman.server.api import JSON_MEDIA_TYPE, SSE_MEDIA_TYPE, Dialects, HttpCall, ModelProfile, model_of_body
from dragoman.server.apis.lmstudio.dialect import StatsDialect, arch_of
from dragoman.server.apis.lmstudio.schema import LmChatCompletion, LmCompletion, LmDetails, LmModel, LmModelList
from dragoman.server.apis.openai_wire.chat.dialect import ChatDialect
from dragoman.server.apis.openai_wire.chat.schema import ChatCompletionChunk
from dragoman.server.apis.openai_wire.completions import CompletionChunk, CompletionsDialect
from dragoman.server.apis.openai_wire.describe import chat_body, completion_body
from dragoman.server.apis.openai_wire.embeddings import embeddings, embeddings_body
from dragoman.server.apis.openai_wire.errors import ERRORS, OpenAiError
from dragoman.server.apis.openai_wire.pooling import TextsDialect
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.apis.openai_wire.routes import embeddings_operation
from dragoman.server.describe.answers import FINDING, LISTING, Answer, json_answer
from dragoman.server.describe.components import GENERATED, MESSAGES, QUESTION
from dragoman.server.describe.json_schema import INTEGER, Schema, any_of, ref
from dragoman.server.model_facts import UNLOADED, ModelFacts, facts_of_all, facts_of_name
from dragoman.server.operations import AnswerOperation, Api, GenerateOperation, Server, looked_at
from dragoman.server.security.scopes import Scope

NAME = "lmstudio"
TAG = "LM Studio"
CHAT, COMPLETIONS, EMBEDDINGS = f"{NAME}.chat", f"{NAME}.completions", f"{NAME}.embeddings"

_ENDLESS = replace(V1, default_max_tokens=None)
"""Completions without a limit go on to their end."""


def set_up(profile: ModelProfile) -> Dialects:
    chat = ChatDialect(profile, lambda model, http: V1)
    completions = CompletionsDialect(profile, _ENDLESS)
    return {
        CHAT: StatsDialect(chat, profile),
        COMPLETIONS: StatsDialect(completions, profile),
        EMBEDDINGS: TextsDialect(profile, embeddings(V1)),
    }


def _schemas(profile: ModelProfile) -> dict[str, Schema]:
    bodies = {"LmChatRequest": chat_body(V1, profile, {}), "LmCompletionRequest": completion_body(_ENDLESS, profile)}
    for body in bodies.values():
        limit = body["properties"]["max_tokens"]
        body["properties"] = {**body["properties"], "max_tokens": any_of(limit, {**INTEGER, "const": -1})}
    return {**bodies, "LmEmbeddingsRequest": embeddings_body(V1, profile)}


async def models(http: HttpCall, server: Server) -> LmModelList:
    await looked_at(server)
    return LmModelList([_listed(facts, facts.name) for facts in facts_of_all(server.models)])


async def model(http: HttpCall, server: Server) -> LmModel:
    """Raises: NotFound, and the errors of loading a model."""
    name = http.path_params["name"]
    return _listed(facts_of_name(server.models, name), name)


def _listed(facts: ModelFacts, name: str) -> LmModel:
    trained, length = facts.card.config.get("max_position_embeddings"), facts.max_model_len
    return LmModel(
        id=name,
        type="embeddings" if facts.is_pooling else "vlm" if "vision" in facts.abilities else "llm",
        publisher=name.partition("/")[0] if "/" in name else "",
        arch=arch_of(facts.card),
        compatibility_type=facts.card.format,
        quantization=facts.dtype,
        state="not-loaded" if facts.status == UNLOADED else "loaded",
        max_context_length=trained if isinstance(trained, int) else length or 0,
        loaded_context_length=UNSET if length is None else length,
    )


def _generates(name: str, summary: str, whole: type, chunk: type, body: str, **example: Any) -> GenerateOperation:
    content = {JSON_MEDIA_TYPE: whole, SSE_MEDIA_TYPE: (chunk, LmDetails, OpenAiError)}
    return GenerateOperation(
        path=f"/api/v0/{name}",
        tag=TAG,
        summary=summary,
        answers=ERRORS.beside(Answer("the answer", content, GENERATED)),
        body={JSON_MEDIA_TYPE: ref(body)},
        example={"model": "default", **example, "max_tokens": 32, "temperature": 0},
        dialect=CHAT if body == "LmChatRequest" else COMPLETIONS,
        model=model_of_body,
    )


_lists = partial(AnswerOperation, tag=TAG, method="GET", scope=Scope.INFERENCE)

API = Api(
    name=NAME,
    title="LM Studio",
    owns=("/api/v0",),
    set_up=set_up,
    teller=lambda dialects: dialects[COMPLETIONS],
    schemas=_schemas,
    operations=(
        _generates(
            "chat/completions",
            "A conversation, with statistics",
            LmChatCompletion,
            ChatCompletionChunk,
            "LmChatRequest",
            messages=MESSAGES,
            stream=True,
        ),
        _generates(
            "completions",
            "A completion, with statistics",
            LmCompletion,
            CompletionChunk,
            "LmCompletionRequest",
            prompt=QUESTION,
        ),
        embeddings_operation(
            path="/api/v0/embeddings",
            summary="Embed texts",
            errors=ERRORS,
            body="LmEmbeddingsRequest",
            dialect=EMBEDDINGS,
        ),
        _lists(
            path="/api/v0/models",
            summary="The models, as LM Studio lists them",
            answers=ERRORS.beside(json_answer(LmModelList, "the list"), LISTING),
            answer=models,
        ),
        _lists(
            path="/api/v0/models/{name}",
            summary="One model",
            answers=ERRORS.beside(json_answer(LmModel, "the description"), FINDING),
            parameters=("name_path",),
            answer=model,
        ),
    ),
)
