"""Operations that several APIs have in OpenAI's wire format: conversations and model lists, as data."""

from __future__ import annotations

from functools import partial
from typing import Any

from dragoman.server.api import JSON_MEDIA_TYPE, HttpCall
from dragoman.server.apis.openai_wire.chat.schema import ChatCompletion
from dragoman.server.apis.openai_wire.errors import ERRORS
from dragoman.server.apis.openai_wire.models import OpenAiModel, OpenAiModelList, openai_model, openai_models
from dragoman.server.describe.answers import (
    FINDING,
    LISTING,
    Answer,
    Answers,
    Content,
    ErrorFamily,
    json_answer,
    merged,
)
from dragoman.server.describe.components import GENERATED, MESSAGES
from dragoman.server.describe.json_schema import ref
from dragoman.server.model_facts import facts_of_all, facts_of_name
from dragoman.server.operations import AnswerOperation, GenerateOperation, Server, looked_at
from dragoman.server.security.scopes import Scope

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
