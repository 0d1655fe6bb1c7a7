"""Anthropic's Messages API: its operations, and how it is set up for a model."""

from __future__ import annotations

from dragoman.server.api import (
    JSON_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    Dialects,
    HttpCall,
    ModelProfile,
    json_reply,
    model_of_body,
)
from dragoman.server.apis.anthropic.batches import BATCH_OPERATIONS, BATCH_PARAMETERS, batch_schemas
from dragoman.server.apis.anthropic.describe import schemas
from dragoman.server.apis.anthropic.dialect import MessagesDialect, prompt_of, read_body
from dragoman.server.apis.anthropic.errors import (
    ERRORS,
    REQUEST_ID,
    AnthropicError,
    ForEitherClient,
    request_id_header,
)
from dragoman.server.apis.anthropic.models import PARAMETERS as MODEL_PARAMETERS
from dragoman.server.apis.anthropic.models import for_anthropic_too
from dragoman.server.apis.anthropic.parameters import cache_ttl, named_without_effect
from dragoman.server.apis.anthropic.schema import EVENTS, AnthropicMessage, PromptBody, TokenCount
from dragoman.server.apis.openai_wire.errors import ERRORS as OPENAI_ERRORS
from dragoman.server.apis.openai_wire.routes import V1_MODELS
from dragoman.server.describe.answers import COUNTING, Answer, json_answer
from dragoman.server.describe.components import GENERATED, IGNORED, MESSAGES, header
from dragoman.server.describe.json_schema import ref
from dragoman.server.generation.tokenizing_service import tokenizing_service
from dragoman.server.operations import AnswerOperation, Api, GenerateOperation, Server
from dragoman.server.responder import note_ignored
from dragoman.server.security.scopes import Scope

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
            answers=ERRORS.beside(json_answer(TokenCount, "the count", REQUEST_ID, *IGNORED), COUNTING),
            body={JSON_MEDIA_TYPE: ref("CountTokensRequest")},
            example=_PROMPT,
            scope=Scope.INFERENCE,
            answer=count_tokens,
        ),
        *BATCH_OPERATIONS,
    ),
    joint=for_anthropic_too(V1_MODELS, OPENAI_ERRORS),
    joint_tellers={"/v1": ForEitherClient},
)
