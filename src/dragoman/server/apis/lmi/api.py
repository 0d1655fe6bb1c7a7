"""AWS Large Model Inference as an API: what LMI's containers serve, their model lists and their front end included."""

from __future__ import annotations

from functools import partial

from dragoman.server.api import (
    JSONLINES_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    HttpCall,
    ModelProfile,
    model_of_body,
    model_of_query_or_header,
)
from dragoman.server.apis.lmi import describe
from dragoman.server.apis.lmi.choose import (
    INPUTS,
    TARGET_MODEL,
    V1_CHAT,
    borrow_target,
    dialect_of_body,
    sole_model_if_unknown,
    target_of,
)
from dragoman.server.apis.lmi.conversations import LMI
from dragoman.server.apis.lmi.dialects import options_of, set_up
from dragoman.server.apis.lmi.errors import LMI_ERRORS, LmiShortError
from dragoman.server.apis.lmi.front import adapters, manage
from dragoman.server.apis.lmi.front.deferred import CUSTOM_ATTRIBUTES, POLLING_FIELDS, Polling
from dragoman.server.apis.openai_wire.chat import LMI_STRICT_MAX_TOKENS, ChatCompletionChunk, ChatDialect
from dragoman.server.apis.openai_wire.describe import chat_body, completion_body, shared_schemas
from dragoman.server.apis.openai_wire.errors import ERRORS, OpenAiError
from dragoman.server.apis.openai_wire.routes import chat_operation
from dragoman.server.descriptions import BY_NAME, GENERATING, VERSIONED, Content, Schema, merged
from dragoman.server.operations import Api, GenerateOperation, Server


def model_of_invocation(http: HttpCall, server: Server) -> str | None:
    """The model that the call targets, or query or header name, or the body of a conversation or completion."""
    named = target_of(http) or model_of_query_or_header(http, server)
    if named or dialect_of_body(http) == INPUTS:
        return named
    return sole_model_if_unknown(model_of_body(http, server), server)


def _model_of_path(http: HttpCall, server: Server) -> str | None:
    return http.path_params["model"]


def schemas(profile: ModelProfile) -> dict[str, Schema]:
    strict = {"max_tokens": LMI_STRICT_MAX_TOKENS} if profile.settings.get("lmi_strict") else {}
    return {
        **describe.request_bodies(options_of(profile)),
        **shared_schemas(),
        **manage.schemas(),
        "ChatRequestInvocations": chat_body(LMI, profile, strict),
        "CompletionRequestInvocations": completion_body(LMI, profile),
    }


def _description(profile: ModelProfile) -> str:
    options = options_of(profile)
    return (
        f"rolling_batch={options.rolling_batch}, lmi_version={options.lmi_version}, "
        f"tgi_compat={str(options.tgi_compat).lower()}"
    )


def _model_of_v1_chat(http: HttpCall, server: Server) -> str | None:
    name, dialect = model_of_body(http, server), server.models.dialects[V1_CHAT]
    if name is None or server.models.knows(name):
        return name
    is_lenient = isinstance(dialect, ChatDialect) and dialect.ignores_unknown_model(http)
    return sole_model_if_unknown(name, server) if is_lenient else name


_IN_LMI_SHAPE = tuple(kind for kind in GENERATING if kind not in ("unauthorized", "too_large"))  # always OpenAI's
_V1_CHAT_STREAM: Content = {
    SSE_MEDIA_TYPE: (ChatCompletionChunk, OpenAiError),
    JSONLINES_MEDIA_TYPE: (ChatCompletionChunk, LmiShortError),
}

_generate = partial(
    GenerateOperation,
    tag="LMI",
    answers=describe.ANSWERS,
    description=describe.TEXT_OF_ALL,
    body=describe.BODIES,
    example=describe.EXAMPLE,
    dialect=dialect_of_body,
    before=Polling(),
    before_fields=POLLING_FIELDS,
    also_pools=True,
)

API = Api(
    name="lmi",
    title="LMI",
    owns=("",),
    set_up=set_up,
    teller=lambda dialects: dialects[INPUTS],
    schemas=schemas,
    description=_description,
    needs_engine=False,
    operations=(
        _generate(
            path="/invocations",
            summary="Generate with the model that query or header name",
            parameters=(*BY_NAME, *VERSIONED, *describe.POLLING, TARGET_MODEL),
            model=model_of_invocation,
            borrow=borrow_target,
        ),
        _generate(
            path="/predictions/{model}",
            summary="Generate",
            parameters=("model_path", *VERSIONED, *describe.POLLING),
            model=_model_of_path,
        ),
        _generate(
            path="/models/{model}/invoke",
            summary="Generate",
            parameters=("model_path", *VERSIONED, *describe.POLLING),
            model=_model_of_path,
        ),
        *adapters.OPERATIONS,
        *manage.OPERATIONS,
    ),
    parameters={**describe.PARAMETERS, **manage.PARAMETERS, **adapters.PARAMETERS},
    headers=describe.HEADERS,
    joint=(
        chat_operation(
            path="/v1/chat/completions",
            summary="A conversation, in OpenAI's or LMI's shape",
            stream=_V1_CHAT_STREAM,
            errors=merged(
                describe.DEFERRED, describe.REFUSED_BY_FRONT, ERRORS.answers(), LMI_ERRORS.answers(_IN_LMI_SHAPE)
            ),
            body="ChatRequestV1",
            parameters=describe.POLLING,
            dialect=V1_CHAT,
            model=_model_of_v1_chat,
            before=Polling(),
            before_fields=POLLING_FIELDS,
        ),
    ),
    # LMI runs inside SageMaker's containers: clients of AWS name requests, and send header fields, in these
    request_id_headers=("x-amzn-sagemaker-inference-id",),
    folded_headers=(CUSTOM_ATTRIBUTES,),
)
