"""OpenVINO Model Server's API: OpenAI's wire format with that server's defaults, limits and words, below `/v3`; what its
clients ask of models by other protocols, below `/v2`, `/v1/config` and `/v1/models`."""

from __future__ import annotations

from dragoman.server.api import JSON_MEDIA_TYPE, SSE_MEDIA_TYPE, Dialects, HttpCall, ModelProfile, model_of_body
from dragoman.server.apis.openai_wire.chat.dialect import ChatDialect, ChatOptions
from dragoman.server.apis.openai_wire.chat.schema import ChatCompletionChunk
from dragoman.server.apis.openai_wire.common import shared_options
from dragoman.server.apis.openai_wire.completions.dialect import CompletionsDialect, CompletionsOptions
from dragoman.server.apis.openai_wire.describe.bodies import chat_body, completion_body, shared_schemas
from dragoman.server.apis.openai_wire.describe.operations import chat_operation, completions_operation, model_operations
from dragoman.server.apis.openai_wire.embeddings.dialect import embeddings
from dragoman.server.apis.openai_wire.embeddings.operation import embeddings_operation
from dragoman.server.apis.openai_wire.embeddings.schema import embeddings_body
from dragoman.server.apis.openai_wire.pooling.dialect import TextsDialect
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.ovms import config, models
from dragoman.server.apis.ovms.tokens import TokenizedV3, request_schema, tokenize
from dragoman.server.apis.ovms_wire.errors import ERRORS, OvmsError
from dragoman.server.apis.ovms_wire.pooling import V3_EMBEDDINGS
from dragoman.server.apis.ovms_wire.profile import V3, V3_CHAT
from dragoman.server.describe.answers import COUNTING, json_answer
from dragoman.server.describe.components import IGNORED, QUESTION
from dragoman.server.describe.json_schema import Schema, ref
from dragoman.server.operations import AnswerOperation, Api
from dragoman.server.security.scopes import Scope

CHAT = "ovms.chat"
COMPLETIONS = "ovms.completions"
EMBEDDINGS = "ovms.embeddings"

OWNER = "OVMS"  # `owned_by` in its model list


def chat_route(options: ChatOptions, http: HttpCall) -> Profile:
    """The profile of a conversation on `/v3`."""
    return V3_CHAT


def set_up(profile: ModelProfile) -> Dialects:
    """The dialects for a model."""
    shared = shared_options(profile)
    return {
        CHAT: ChatDialect(profile.options(ChatOptions, route=chat_route, **shared)),
        COMPLETIONS: CompletionsDialect(profile.options(CompletionsOptions, profile=V3, **shared)),
        EMBEDDINGS: TextsDialect(profile, embeddings(V3_EMBEDDINGS)),
    }


def _schemas(profile: ModelProfile) -> dict[str, Schema]:
    return {
        **shared_schemas(),
        "EmbeddingsRequestV3": embeddings_body(V3_EMBEDDINGS, profile),
        "CompletionRequestV3": completion_body(V3, profile),
        "ChatRequestV3": chat_body(V3_CHAT, profile, {}),
        "TokenizeRequestV3": request_schema(),
    }


API = Api(
    name="ovms",
    title="OpenVINO",
    owns=("/v3", "/v2", "/v1/config"),
    set_up=set_up,
    teller=lambda dialects: dialects[COMPLETIONS],
    schemas=_schemas,
    operations=(
        chat_operation(
            path="/v3/chat/completions",
            summary="A conversation, with OpenVINO Model Server's defaults",
            stream={SSE_MEDIA_TYPE: (ChatCompletionChunk, OvmsError)},
            errors=ERRORS.answers(),
            body="ChatRequestV3",
            dialect=CHAT,
            model=model_of_body,
        ),
        completions_operation(
            path="/v3/completions",
            summary="A completion, with OpenVINO Model Server's defaults",
            error=OvmsError,
            errors=ERRORS.answers(),
            body="CompletionRequestV3",
            dialect=COMPLETIONS,
        ),
        embeddings_operation(
            path="/v3/embeddings",
            summary="Embed texts, as OpenVINO Model Server does",
            errors=ERRORS.answers(),
            body="EmbeddingsRequestV3",
            dialect=EMBEDDINGS,
        ),
        *model_operations("/v3/models", "The models, as OpenVINO Model Server lists them", ERRORS, OWNER),
        AnswerOperation(
            path="/v3/tokenize",
            tag="Tokens",
            summary="The tokens of texts, as OpenVINO Model Server tells them",
            answers=ERRORS.beside(json_answer(TokenizedV3, "the tokens", *IGNORED), COUNTING),
            body={JSON_MEDIA_TYPE: ref("TokenizeRequestV3")},
            example={"model": "default", "text": QUESTION},
            scope=Scope.INFERENCE,
            answer=tokenize,
        ),
        *config.OPERATIONS,
        *models.OPERATIONS,
    ),
    parameters=models.PARAMETERS,
)
