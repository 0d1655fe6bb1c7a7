"""The part of an API that has OpenAI's shape: completions, conversations, embeddings and the list of models, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dragoman.server.api import JSON_MEDIA_TYPE, SSE_MEDIA_TYPE, Dialects, ModelProfile, model_of_body
from dragoman.server.apis.openai_wire.chat.dialect import ChatDialect
from dragoman.server.apis.openai_wire.chat.schema import ChatCompletionChunk
from dragoman.server.apis.openai_wire.completions.dialect import CompletionsDialect
from dragoman.server.apis.openai_wire.completions.schema import Completion, CompletionChunk
from dragoman.server.apis.openai_wire.describe.bodies import chat_body, completion_body, shared_schemas
from dragoman.server.apis.openai_wire.describe.operations import chat_operation, model_operations
from dragoman.server.apis.openai_wire.embeddings.dialect import embeddings
from dragoman.server.apis.openai_wire.embeddings.schema import EmbeddingList, embeddings_body
from dragoman.server.apis.openai_wire.pooling.dialect import TextsDialect
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.describe.answers import Answer, ErrorFamily, json_answer
from dragoman.server.describe.components import GENERATED, IGNORED, QUESTION
from dragoman.server.describe.json_schema import Schema, ref
from dragoman.server.operations import GenerateOperation, Operation, PoolingOperation


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
