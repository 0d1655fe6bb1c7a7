"""OpenAI's API: completions, conversations, model lists, and the token operations of servers that speak it."""

from __future__ import annotations

from dragoman.server.api import SSE_MEDIA_TYPE, Dialects, ModelProfile, model_of_body
from dragoman.server.apis.openai.adapters import ADAPTER_OPERATIONS, adapter_schemas
from dragoman.server.apis.openai.batches import BATCH_OPERATIONS, BATCH_PARAMETERS, batch_schemas
from dragoman.server.apis.openai.tokens import TOKEN_OPERATIONS, token_schemas
from dragoman.server.apis.openai_wire.chat.dialect import LMI_STRICT_MAX_TOKENS, ChatDialect, ChatOptions
from dragoman.server.apis.openai_wire.chat.schema import ChatCompletionChunk
from dragoman.server.apis.openai_wire.common import shared_options
from dragoman.server.apis.openai_wire.completions.dialect import CompletionsDialect, CompletionsOptions
from dragoman.server.apis.openai_wire.describe.bodies import chat_body, completion_body, shared_schemas
from dragoman.server.apis.openai_wire.describe.operations import V1_MODELS, chat_operation, completions_operation
from dragoman.server.apis.openai_wire.embeddings.dialect import embeddings
from dragoman.server.apis.openai_wire.embeddings.operation import embeddings_operation
from dragoman.server.apis.openai_wire.embeddings.schema import embeddings_body
from dragoman.server.apis.openai_wire.errors import ERRORS, OpenAiError
from dragoman.server.apis.openai_wire.pooling.dialect import TextsDialect
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.describe.json_schema import Schema
from dragoman.server.operations import Api

CHAT = "openai.chat"
COMPLETIONS = "openai.completions"
EMBEDDINGS = "openai.embeddings"


def set_up(profile: ModelProfile) -> Dialects:
    """The dialects for a model."""
    shared = shared_options(profile)
    return {
        CHAT: ChatDialect(profile.options(ChatOptions, route=lambda options, http: V1, **shared)),
        COMPLETIONS: CompletionsDialect(profile.options(CompletionsOptions, profile=V1, **shared)),
        EMBEDDINGS: TextsDialect(profile, embeddings(V1)),
    }


def _schemas(profile: ModelProfile) -> dict[str, Schema]:
    settings = profile.settings
    is_strict = settings.get("lmi_strict") and settings.get("chat_format") == "lmi"
    return {
        **shared_schemas(),
        **token_schemas(profile),
        **adapter_schemas(),
        **batch_schemas(),
        "EmbeddingsRequestV1": embeddings_body(V1, profile),
        "CompletionRequestV1": completion_body(V1, profile),
        "ChatRequestV1": chat_body(V1, profile, {"max_tokens": LMI_STRICT_MAX_TOKENS} if is_strict else {}),
    }


def _description(profile: ModelProfile) -> str:
    settings = profile.settings
    return (
        f"chat_format={settings.get('chat_format', 'auto')}, lmi_strict={str(bool(settings.get('lmi_strict'))).lower()}"
    )


API = Api(
    name="openai",
    title="OpenAI",
    owns=("/v1", "/tokenize", "/detokenize", "/tokenizer_info"),
    set_up=set_up,
    teller=lambda dialects: dialects[COMPLETIONS],
    schemas=_schemas,
    description=_description,
    operations=(
        chat_operation(
            path="/v1/chat/completions",
            summary="A conversation, as OpenAI's",
            stream={SSE_MEDIA_TYPE: (ChatCompletionChunk, OpenAiError)},
            errors=ERRORS.answers(),
            body="ChatRequestV1",
            dialect=CHAT,
            model=model_of_body,
        ),
        completions_operation(
            path="/v1/completions",
            summary="A completion, as OpenAI's",
            error=OpenAiError,
            errors=ERRORS.answers(),
            body="CompletionRequestV1",
            dialect=COMPLETIONS,
        ),
        embeddings_operation(
            path="/v1/embeddings",
            summary="Embed texts, as OpenAI does",
            errors=ERRORS.answers(),
            body="EmbeddingsRequestV1",
            dialect=EMBEDDINGS,
        ),
        *V1_MODELS,
        *TOKEN_OPERATIONS,
        *ADAPTER_OPERATIONS,
        *BATCH_OPERATIONS,
    ),
    parameters=BATCH_PARAMETERS,
)
