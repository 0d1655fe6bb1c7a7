"""AWS Large Model Inference as an API: what LMI's containers serve, their model lists and their front end included.

SageMaker's operations wrap the same bodies and answers.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial

from dragoman.server.api import (
    JSON_MEDIA_TYPE,
    JSONLINES_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    TEXT_MEDIA_TYPE,
    HttpCall,
    ModelProfile,
    model_of_body,
    model_of_query_or_header,
)
from dragoman.server.apis.lmi import adapters, models
from dragoman.server.apis.lmi.deferred import (
    CUSTOM_ATTRIBUTES,
    MAX_ITEMS,
    NEXT_TOKEN,
    STARTING_TOKEN,
    SYNCHRONOUS,
    Polling,
)
from dragoman.server.apis.lmi.dialect import INPUTS, V1_CHAT, dialect_of_body
from dragoman.server.apis.lmi.dialects import LMI, options_of, set_up
from dragoman.server.apis.lmi.errors import LMI_ERRORS, FrontError, LmiBatchError, LmiShortError, LmiStreamFailure
from dragoman.server.apis.lmi_wire.answers import (
    LMI_RESULTS,
    LmiBatch,
    LmiLine,
    LmiOutputsLine,
    LmiResult,
    LmiResultOfSeveral,
)
from dragoman.server.apis.lmi_wire.body import FORM_SCHEMA, body_schemas
from dragoman.server.apis.lmi_wire.parameters import LmiOptions, parameter_schemas
from dragoman.server.apis.openai_wire.chat import (
    LMI_STRICT_MAX_TOKENS,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDialect,
)
from dragoman.server.apis.openai_wire.completions import Completion, CompletionChunk
from dragoman.server.apis.openai_wire.describe import chat_body, completion_body, shared_schemas
from dragoman.server.apis.openai_wire.errors import ERRORS as OPENAI_ERRORS
from dragoman.server.apis.openai_wire.errors import OpenAiError
from dragoman.server.apis.openai_wire.routes import chat_operation
from dragoman.server.descriptions import (
    BOOLEAN,
    BY_NAME,
    GENERATED,
    GENERATING,
    LENIENT_BOOLEAN,
    NON_EMPTY_TEXT,
    QUESTION,
    TEXT,
    VERSIONED,
    Answer,
    Answers,
    Content,
    Schema,
    an_object,
    any_of,
    array,
    described,
    header,
    json_answer,
    merged,
    nullable,
    parameter,
    ref,
)
from dragoman.server.operations import Api, GenerateOperation, Server
from dragoman.server.registry import PLACEHOLDER_MODELS, ServedModel

# SageMaker's multi-model endpoints: the value is an archive's path below the models' prefix, loaded when it is asked for.
TARGET_MODEL = "x-amzn-sagemaker-target-model"


def _sole_model_if_unknown(name: str | None, server: Server) -> str | None:
    """`name` where it tells models apart; None, for the default model, if the only model has another name."""
    models = server.models
    return None if name is None or (models.is_single and not models.knows(name)) else name


def target_of(http: HttpCall) -> str:
    return http.headers.get(TARGET_MODEL, "").lstrip("/").removesuffix(".tar.gz")


def borrow_target(http: HttpCall, server: Server) -> AbstractAsyncContextManager[ServedModel] | None:
    """The targeted model while the call runs; None if it targets none, or just the default one."""
    name = target_of(http)
    is_default = name in PLACEHOLDER_MODELS and server.models.get(name) is None
    return None if server.hosting is None or is_default else server.hosting.get_or_load(name)


def _model_of_invocation(http: HttpCall, server: Server) -> str | None:
    """The model that the call targets, or query or header name, or the body of a conversation or completion."""
    named = target_of(http) or model_of_query_or_header(http, server)
    if named or dialect_of_body(http) == INPUTS:
        return named
    return _sole_model_if_unknown(model_of_body(http, server), server)


def _model_of_path(http: HttpCall, server: Server) -> str | None:
    return http.path_params["model"]


def schemas(profile: ModelProfile) -> dict[str, Schema]:
    options = options_of(profile)
    strict = {"max_tokens": LMI_STRICT_MAX_TOKENS} if profile.settings.get("lmi_strict") else {}
    return {
        **parameter_schemas("LmiParameters", options),
        "LmiRequest": _request_schema(options),
        "LmiForm": FORM_SCHEMA,
        **shared_schemas(),
        **models.schemas(),
        "ChatRequestInvocations": chat_body(LMI, profile, strict),
        "CompletionRequestInvocations": completion_body(LMI, profile),
    }


def _request_schema(options: LmiOptions) -> Schema:
    return an_object(
        {
            "inputs": described(
                any_of(NON_EMPTY_TEXT, array(NON_EMPTY_TEXT, minItems=1, maxItems=options.model.limits.max_prompts)),
                "the prompt, or several",
            )
        },
        {
            "parameters": nullable(ref("LmiParameters")),
            "stream": described(nullable(LENIENT_BOOLEAN), "send the answer token by token", False),
            "model_name": described({}, "tolerated: the model is chosen by path, query or header"),
        },
        text=f"Profile {options.profile}, LMI version {options.lmi_version}.",
    )


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
    return _sole_model_if_unknown(name, server) if is_lenient else name


EXAMPLE = {"inputs": QUESTION, "parameters": {"max_new_tokens": 32, "details": True}, "stream": True}
POLLING = (SYNCHRONOUS, STARTING_TOKEN, MAX_ITEMS)
_NEXT = (NEXT_TOKEN, "X-Amzn-SageMaker-Custom-Attributes")

_PAIR = an_object({"key": TEXT, "value": TEXT})
_PAIRS = an_object({"inputs": any_of(_PAIR, array(_PAIR, minItems=1))}, text="for a model that scores")

BODIES = body_schemas(
    any_of(ref("LmiRequest"), ref("ChatRequestInvocations"), ref("CompletionRequestInvocations"), _PAIRS)
)
_STREAM = (
    LmiLine,
    LmiOutputsLine,
    LmiStreamFailure,
    LmiBatchError,
    ChatCompletionChunk,
    CompletionChunk,
    LmiShortError,
)
TEXT_OF_ALL = (
    "A JSON object with `messages` is a conversation, one with `prompt` and without `inputs` a completion, everything else "
    "LMI's `inputs`. Streams are JSON lines, or server-sent events if `Accept` names `text/event-stream`.\n\n"
    "With `x-synchronous: false` the call runs without a waiting client. Its answer is fetched with calls that have "
    "`x-starting-token`, the `x-next-token` of the answer before: 202 while there is nothing new, else what was written "
    "since, with the status of the call itself; the last answer has no `x-next-token`."
)


def answered(content: Content, description: str = "the answer", *headers: str) -> Answers:
    return {200: Answer(description, content, (*GENERATED, *headers))}


DEFERRED: Answers = {
    200: Answer(
        "empty, with a token to poll with, for `x-synchronous: false`",
        {TEXT_MEDIA_TYPE: {**TEXT, "maxLength": 0}},
        _NEXT,
    ),
    202: Answer("a poll: nothing new yet", {}, _NEXT),
}
REFUSED_BY_FRONT: Answers = {
    400: json_answer(FrontError, "the poll names no answer, or the call tries to override the handler")
}

CONTENT: Content = {
    JSON_MEDIA_TYPE: (
        *LMI_RESULTS,
        list[LmiResult],
        list[LmiResultOfSeveral],
        LmiBatch,
        ChatCompletion,
        Completion,
        list[float],  # of models that embed or score
        list[list[float]],
    ),
    JSONLINES_MEDIA_TYPE: _STREAM,
    SSE_MEDIA_TYPE: (*_STREAM, OpenAiError),
}
# Chat that asks for server-sent events gets errors in OpenAI's form.
ANSWERS = merged(answered(CONTENT), DEFERRED, REFUSED_BY_FRONT, LMI_ERRORS.answers(), OPENAI_ERRORS.answers())

PARAMETERS = {
    "model_path": parameter("path", "model", "the model's name; `name/version` asks for that version", TEXT),
    SYNCHRONOUS: parameter(
        "header", SYNCHRONOUS, "false: answer at once with a token to poll with", {**BOOLEAN, "default": True}
    ),
    STARTING_TOKEN: parameter(
        "header", STARTING_TOKEN, "a poll: send what was answered since this token was made", TEXT
    ),
    MAX_ITEMS: parameter(
        "header",
        MAX_ITEMS,
        "a poll: at most this many records",
        {"type": "integer", "minimum": 1, "maximum": 999_999_999},
    ),
    TARGET_MODEL: parameter(
        "header",
        "X-Amzn-SageMaker-Target-Model",
        "the model to use, as `NAME` or `NAME.tar.gz`; one of the operator's model store is loaded if need be",
        TEXT,
    ),
}

HEADERS = {
    NEXT_TOKEN: header("the token to poll with next, as long as more may come"),
    "X-Amzn-SageMaker-Custom-Attributes": header("`x-next-token=TOKEN`, which SageMaker's runtime hands on"),
}

_IN_LMI_SHAPE = tuple(kind for kind in GENERATING if kind not in ("unauthorized", "too_large"))  # always OpenAI's
_V1_CHAT_STREAM: Content = {
    SSE_MEDIA_TYPE: (ChatCompletionChunk, OpenAiError),
    JSONLINES_MEDIA_TYPE: (ChatCompletionChunk, LmiShortError),
}

_generate = partial(
    GenerateOperation,
    tag="LMI",
    answers=ANSWERS,
    description=TEXT_OF_ALL,
    body=BODIES,
    example=EXAMPLE,
    dialect=dialect_of_body,
    before=Polling(),
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
            parameters=(*BY_NAME, *VERSIONED, *POLLING, TARGET_MODEL),
            model=_model_of_invocation,
            borrow=borrow_target,
        ),
        _generate(
            path="/predictions/{model}",
            summary="Generate",
            parameters=("model_path", *VERSIONED, *POLLING),
            model=_model_of_path,
        ),
        _generate(
            path="/models/{model}/invoke",
            summary="Generate",
            parameters=("model_path", *VERSIONED, *POLLING),
            model=_model_of_path,
        ),
        *adapters.OPERATIONS,
        *models.OPERATIONS,
    ),
    parameters={**PARAMETERS, **models.PARAMETERS, **adapters.PARAMETERS},
    headers=HEADERS,
    joint=(
        chat_operation(
            path="/v1/chat/completions",
            summary="A conversation, in OpenAI's or LMI's shape",
            stream=_V1_CHAT_STREAM,
            errors=merged(DEFERRED, REFUSED_BY_FRONT, OPENAI_ERRORS.answers(), LMI_ERRORS.answers(_IN_LMI_SHAPE)),
            body="ChatRequestV1",
            parameters=POLLING,
            dialect=V1_CHAT,
            model=_model_of_v1_chat,
            before=Polling(),
        ),
    ),
    # LMI runs inside SageMaker's containers: clients of AWS name requests, and send header fields, in these
    request_id_headers=("x-amzn-sagemaker-inference-id",),
    folded_headers=(CUSTOM_ATTRIBUTES,),
)
