"""OpenVINO Model Server's API: OpenAI's wire format below `/v3`, and models by other protocols."""

from __future__ import annotations

from dragoman.server.api import JSON_MEDIA_TYPE, ModelProfile
from dragoman.server.apis.openai_wire.routes import OpenAiRoutes
from dragoman.server.apis.ovms import config, models
from dragoman.server.apis.ovms.tokens import TokenizedV3, request_schema, tokenize
from dragoman.server.apis.ovms_wire.profile import ERRORS, V3, V3_CHAT, V3_EMBEDDINGS, OvmsError
from dragoman.server.describe.answers import COUNTING, json_answer
from dragoman.server.describe.components import IGNORED, QUESTION
from dragoman.server.describe.json_schema import Schema, ref
from dragoman.server.operations import AnswerOperation, Api
from dragoman.server.security.scopes import Scope

ROUTES = OpenAiRoutes(
    name="ovms",
    version="v3",
    chat_profile=V3_CHAT,
    completions_profile=V3,
    embeddings_profile=V3_EMBEDDINGS,
    errors=ERRORS,
    error=OvmsError,
    owned_by="OVMS",
    server="OpenVINO Model Server",
    manner="with OpenVINO Model Server's defaults",
)


def _schemas(profile: ModelProfile) -> dict[str, Schema]:
    return {**ROUTES.schemas(profile, {}), "TokenizeRequestV3": request_schema()}


API = Api(
    name="ovms",
    title="OpenVINO",
    owns=("/v3", "/v2", "/v1/config"),
    set_up=ROUTES.dialects,
    teller=lambda dialects: dialects[ROUTES.completions],
    schemas=_schemas,
    operations=(
        *ROUTES.operations(),
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
