"""OpenAI's API: completions, conversations, model lists, and the token operations of servers that speak it."""

from __future__ import annotations

from dragoman.server.api import ModelProfile
from dragoman.server.apis.openai.adapters import ADAPTER_OPERATIONS, adapter_schemas
from dragoman.server.apis.openai.batches import BATCH_OPERATIONS, BATCH_PARAMETERS, batch_schemas
from dragoman.server.apis.openai.tokens import TOKEN_OPERATIONS, token_schemas
from dragoman.server.apis.openai_wire.chat import LMI_STRICT_MAX_TOKENS
from dragoman.server.apis.openai_wire.errors import ERRORS, OpenAiError
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.apis.openai_wire.routes import OpenAiRoutes
from dragoman.server.describe.json_schema import Schema
from dragoman.server.operations import Api

ROUTES = OpenAiRoutes(
    name="openai",
    version="v1",
    chat_profile=V1,
    completions_profile=V1,
    embeddings_profile=V1,
    errors=ERRORS,
    error=OpenAiError,
    owned_by="dragoman",
    server="OpenAI",
    manner="as OpenAI's",
)


def _schemas(profile: ModelProfile) -> dict[str, Schema]:
    settings = profile.settings
    is_strict = settings.get("lmi_strict") and settings.get("chat_format") == "lmi"
    return {
        **ROUTES.schemas(profile, {"max_tokens": LMI_STRICT_MAX_TOKENS} if is_strict else {}),
        **token_schemas(profile),
        **adapter_schemas(),
        **batch_schemas(),
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
    set_up=ROUTES.dialects,
    teller=lambda dialects: dialects[ROUTES.completions],
    schemas=_schemas,
    description=_description,
    operations=(
        *ROUTES.operations(),
        *TOKEN_OPERATIONS,
        *ADAPTER_OPERATIONS,
        *BATCH_OPERATIONS,
    ),
    parameters=BATCH_PARAMETERS,
)
