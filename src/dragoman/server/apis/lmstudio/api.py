"""LM Studio's own API below `/api/v0`: OpenAI's operations with statistics, and its list of models."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from dragoman.server.api import JSON_MEDIA_TYPE, SSE_MEDIA_TYPE, Dialects, HttpCall, ModelProfile, model_of_body
from dragoman.server.apis.lmstudio.dialect import StatsDialect, arch_of
from dragoman.server.apis.lmstudio.schema import LmChatCompletion, LmCompletion, LmDetails, LmModel, LmModelList
from dragoman.server.apis.openai_wire.chat.dialect import ChatDialect, ChatOptions, ChatRoute
from dragoman.server.apis.openai_wire.chat.schema import ChatCompletionChunk
from dragoman.server.apis.openai_wire.common import shared_options
from dragoman.server.apis.openai_wire.completions.dialect import CompletionsDialect, CompletionsOptions
from dragoman.server.apis.openai_wire.completions.schema import CompletionChunk
from dragoman.server.apis.openai_wire.describe.bodies import chat_body, completion_body
from dragoman.server.apis.openai_wire.embeddings.dialect import EmbeddingsDialect
from dragoman.server.apis.openai_wire.embeddings.operation import embeddings_operation
from dragoman.server.apis.openai_wire.embeddings.schema import embeddings_body
from dragoman.server.apis.openai_wire.errors import ERRORS, OpenAiError
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.describe.answers import LOADING, Answer, Answers, json_answer, merged
from dragoman.server.describe.components import GENERATED, MESSAGES, QUESTION
from dragoman.server.describe.json_schema import INTEGER, Schema, any_of, ref
from dragoman.server.model_facts import facts_by_name
from dragoman.server.operations import AnswerOperation, Api, GenerateOperation, Server, looked_at
from dragoman.server.registry import ServedModel, UnloadedModel
from dragoman.server.security.scopes import Scope

NAME = "lmstudio"
TAG = "LM Studio"
CHAT, COMPLETIONS, EMBEDDINGS = f"{NAME}.chat", f"{NAME}.completions", f"{NAME}.embeddings"

_ENDLESS = replace(V1, default_max_tokens=None)
"""Completions go on to their end where nobody says how long they may be."""
_ROUTE = ChatRoute({"openai": V1}, lambda options, http, body: "openai")


def set_up(profile: ModelProfile) -> Dialects:
    """Its dialects for a model."""
    shared = shared_options(profile)
    chat = ChatDialect(profile.options(ChatOptions, route=_ROUTE, **shared))
    completions = CompletionsDialect(profile.options(CompletionsOptions, profile=_ENDLESS, **shared))
    return {
        CHAT: StatsDialect(chat, profile),
        COMPLETIONS: StatsDialect(completions, profile),
        EMBEDDINGS: EmbeddingsDialect(profile),
    }


def _schemas(profile: ModelProfile) -> dict[str, Schema]:
    bodies = {"LmChatRequest": chat_body(V1, profile, {}), "LmCompletionRequest": completion_body(_ENDLESS, profile)}
    for body in bodies.values():
        limit = body["properties"]["max_tokens"]
        body["properties"] = {**body["properties"], "max_tokens": any_of(limit, {**INTEGER, "const": -1})}
    return {**bodies, "LmEmbeddingsRequest": embeddings_body(V1, profile)}


async def models(http: HttpCall, server: Server) -> LmModelList:
    """Every name that can be asked for."""
    await looked_at(server)
    served = [_listed(model, facts.name) for model in server.models.models for facts in facts_by_name([model])]
    return LmModelList(served + [_away(one, name) for one in server.models.unloaded for name in one.names])


async def model(http: HttpCall, server: Server) -> LmModel:
    """One model. Raises: NotFound, and what a model that is not there yet raises."""
    name = http.path_params["name"]
    if (away := server.models.unloaded_called(name)) is not None:
        return _away(away, name)
    return _listed(server.models.find(name), name)


def _away(model: UnloadedModel, name: str) -> LmModel:
    """A model that the next call which names it has loaded."""
    config = model.card.config
    kind, trained = config.get("model_type"), config.get("max_position_embeddings")
    return LmModel(
        id=name,
        type="vlm" if "vision_config" in config else "llm",
        publisher=_publisher(name),
        arch=kind if isinstance(kind, str) else "",
        compatibility_type=model.card.format,
        quantization="",
        state="not-loaded",
        max_context_length=trained if isinstance(trained, int) else 0,
    )


def _publisher(name: str) -> str:
    return name.partition("/")[0] if "/" in name else ""


def _listed(model: ServedModel, name: str) -> LmModel:
    card, length = model.profile.card, model.engine.capabilities.max_model_len
    trained = card.config.get("max_position_embeddings")
    return LmModel(
        id=name,
        type="embeddings" if model.pooling is not None else "vlm" if "vision" in model.profile.abilities else "llm",
        publisher=_publisher(name),
        arch=arch_of(model.profile),
        compatibility_type=card.format,
        quantization=model.dtype,
        max_context_length=trained if isinstance(trained, int) else length,
        loaded_context_length=length,
    )


def _generated(whole: type, chunk: type) -> Answers:
    content = {JSON_MEDIA_TYPE: whole, SSE_MEDIA_TYPE: (chunk, LmDetails, OpenAiError)}
    return merged({200: Answer("the answer", content, GENERATED)}, ERRORS.answers())


_generates = partial(GenerateOperation, tag=TAG, model=model_of_body)
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
            path="/api/v0/chat/completions",
            summary="A conversation, with statistics",
            answers=_generated(LmChatCompletion, ChatCompletionChunk),
            body={JSON_MEDIA_TYPE: ref("LmChatRequest")},
            example={"model": "default", "messages": MESSAGES, "max_tokens": 32, "temperature": 0, "stream": True},
            dialect=CHAT,
        ),
        _generates(
            path="/api/v0/completions",
            summary="A completion, with statistics",
            answers=_generated(LmCompletion, CompletionChunk),
            body={JSON_MEDIA_TYPE: ref("LmCompletionRequest")},
            example={"model": "default", "prompt": QUESTION, "max_tokens": 32, "temperature": 0},
            dialect=COMPLETIONS,
        ),
        embeddings_operation(
            path="/api/v0/embeddings",
            summary="Embed texts",
            errors=ERRORS.answers(),
            body="LmEmbeddingsRequest",
            dialect=EMBEDDINGS,
        ),
        _lists(
            path="/api/v0/models",
            summary="The models, as LM Studio lists them",
            answers=merged({200: json_answer(LmModelList, "the list")}, ERRORS.answers(("unauthorized",))),
            answer=models,
        ),
        _lists(
            path="/api/v0/models/{name}",
            summary="One model",
            answers=merged(
                {200: json_answer(LmModel, "the description")},
                ERRORS.answers(("unauthorized", "not_found", *LOADING)),
            ),
            parameters=("name_path",),
            answer=model,
        ),
    ),
)
