"""The part of an API that has OpenAI's shape: completions, conversations, embeddings and the list of models, as data.

Source of the list: OpenAI API reference, models; vLLM's `max_model_len`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.server.api import JSON_MEDIA_TYPE, SSE_MEDIA_TYPE, Dialects, HttpCall, ModelProfile, model_of_body
from dragoman.server.apis.openai_wire.chat import ChatCompletion, ChatCompletionChunk, ChatDialect
from dragoman.server.apis.openai_wire.completions import Completion, CompletionChunk, CompletionsDialect
from dragoman.server.apis.openai_wire.describe import chat_body, completion_body, shared_schemas
from dragoman.server.apis.openai_wire.errors import ERRORS
from dragoman.server.apis.openai_wire.pooling import EmbeddingList, TextsDialect, embeddings, embeddings_body
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.descriptions import (
    FINDING,
    GENERATED,
    IGNORED,
    LISTING,
    MESSAGES,
    QUESTION,
    Answer,
    Answers,
    Content,
    ErrorFamily,
    Schema,
    json_answer,
    merged,
    ref,
)
from dragoman.server.model_facts import ModelFacts, facts_of_all, facts_of_name
from dragoman.server.operations import (
    AnswerOperation,
    GenerateOperation,
    Operation,
    PoolingOperation,
    Server,
    looked_at,
)
from dragoman.server.security.callers import Scope

# --- lists of models --------------------------------------------------------------------------------------------------


class OpenAiModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `created`: Unix time in seconds. `max_model_len`: tokens of context.

    `parent`: of an adapter, the model that it changes; `root`: where it was loaded from. `aliases`: all of its names, if it
    has several, and `tags`: what the operator tells of it, as llama.cpp's server has them.
    """

    id: str
    object: str = "model"
    created: int
    owned_by: str
    max_model_len: int | UnsetType = UNSET
    root: str | UnsetType = UNSET
    parent: str | UnsetType = UNSET
    aliases: list[str] | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET


class OpenAiModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All models."""

    object: str = "list"
    data: list[OpenAiModel]


def openai_model(facts: ModelFacts, owned_by: str = "dragoman") -> OpenAiModel:
    return OpenAiModel(
        id=facts.name,
        created=facts.created_s,
        owned_by=owned_by,
        max_model_len=UNSET if facts.max_model_len is None else facts.max_model_len,
        root=facts.root or UNSET,
        parent=facts.parent or UNSET,
        aliases=list(facts.names) if len(facts.names) > 1 else UNSET,
        tags=list(facts.tags) if facts.tags else UNSET,
    )


def openai_models(models: Sequence[ModelFacts], owned_by: str = "dragoman") -> OpenAiModelList:
    return OpenAiModelList(data=[openai_model(facts, owned_by) for facts in models])


# --- operations -------------------------------------------------------------------------------------------------------

_CHAT_EXAMPLE = {"model": "default", "messages": MESSAGES, "max_tokens": 32, "temperature": 0, "stream": True}


def chat_operation(*, stream: Content, errors: Answers, body: str, **more: Any) -> GenerateOperation:
    """A conversation. `stream`: its stream's objects by media type. `body`: the component."""
    content = {JSON_MEDIA_TYPE: ChatCompletion, **stream}
    return GenerateOperation(
        tag="Chat",
        answers=merged({200: Answer("the answer", content, GENERATED)}, errors),
        description="Streams in OpenAI's shape are server-sent events that end in `data: [DONE]`.",
        body={JSON_MEDIA_TYPE: ref(body)},
        example=_CHAT_EXAMPLE,
        **more,
    )


def model_operations(path: str, summary: str, errors: ErrorFamily, owned_by: str) -> tuple[AnswerOperation, ...]:
    async def models(http: HttpCall, server: Server) -> OpenAiModelList:
        await looked_at(server)
        return openai_models(facts_of_all(server.models), owned_by)

    async def model(http: HttpCall, server: Server) -> OpenAiModel:
        name = http.path_params["name"]
        return openai_model(facts_of_name(server.models, name), owned_by)

    operation = partial(AnswerOperation, method="GET", tag="Models", scope=Scope.INFERENCE)
    return (
        operation(
            path=path,
            summary=summary,
            answers=errors.beside(json_answer(OpenAiModelList, "the list"), LISTING),
            answer=models,
        ),
        operation(
            path=f"{path}/{{name}}",
            summary="One model",
            answers=errors.beside(json_answer(OpenAiModel, "the description"), FINDING),
            parameters=("name_path",),
            answer=model,
        ),
    )


V1_MODELS = model_operations("/v1/models", "The models, as OpenAI lists them", ERRORS, "dragoman")
"""OpenAI's list of models; clients of another API call these paths as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiRoutes:
    """The routes of one API. `name` begins its dialects' names, `version` its paths and ends its bodies' names.

    `error`: the body of an error. `server`: whose API it is; `manner` says so of what it generates.
    """

    name: str
    version: str
    chat_profile: Profile
    completions_profile: Profile
    embeddings_profile: Profile
    errors: ErrorFamily
    error: type
    owned_by: str
    server: str
    manner: str

    @property
    def chat(self) -> str:
        return f"{self.name}.chat"

    @property
    def completions(self) -> str:
        return f"{self.name}.completions"

    def dialects(self, profile: ModelProfile) -> Dialects:
        return {
            self.chat: ChatDialect(profile, lambda model, http: self.chat_profile),
            self.completions: CompletionsDialect(profile, self.completions_profile),
            f"{self.name}.embeddings": TextsDialect(profile, embeddings(self.embeddings_profile)),
        }

    def schemas(self, profile: ModelProfile, chat_defaults: Mapping[str, Any]) -> dict[str, Schema]:
        version = self.version.upper()
        return {
            **shared_schemas(),
            f"EmbeddingsRequest{version}": embeddings_body(self.embeddings_profile, profile),
            f"CompletionRequest{version}": completion_body(self.completions_profile, profile),
            f"ChatRequest{version}": chat_body(self.chat_profile, profile, chat_defaults),
        }

    def operations(self) -> tuple[Operation, ...]:
        path, version = f"/{self.version}", self.version.upper()
        content = {JSON_MEDIA_TYPE: Completion, SSE_MEDIA_TYPE: (CompletionChunk, self.error)}
        return (
            chat_operation(
                path=f"{path}/chat/completions",
                summary=f"A conversation, {self.manner}",
                stream={SSE_MEDIA_TYPE: (ChatCompletionChunk, self.error)},
                errors=self.errors.answers(),
                body=f"ChatRequest{version}",
                dialect=self.chat,
                model=model_of_body,
            ),
            GenerateOperation(
                path=f"{path}/completions",
                tag="Completions",
                summary=f"A completion, {self.manner}",
                description="Streams are server-sent events that end in `data: [DONE]`.",
                answers=self.errors.beside(Answer("the answer", content, GENERATED)),
                body={JSON_MEDIA_TYPE: ref(f"CompletionRequest{version}")},
                example={"model": "default", "prompt": QUESTION, "max_tokens": 32, "temperature": 0, "stream": True},
                dialect=self.completions,
                model=model_of_body,
            ),
            embeddings_operation(
                path=f"{path}/embeddings",
                summary=f"Embed texts, as {self.server} does",
                errors=self.errors,
                body=f"EmbeddingsRequest{version}",
                dialect=f"{self.name}.embeddings",
            ),
            *model_operations(f"{path}/models", f"The models, as {self.server} lists them", self.errors, self.owned_by),
        )


def embeddings_operation(*, errors: ErrorFamily, body: str, **more: Any) -> PoolingOperation:
    return PoolingOperation(
        tag="Embeddings",
        answers=errors.beside(json_answer(EmbeddingList, "the vectors", *IGNORED)),
        body={JSON_MEDIA_TYPE: ref(body)},
        example={"model": "default", "input": [QUESTION], "encoding_format": "float"},
        model=model_of_body,
        **more,
    )
