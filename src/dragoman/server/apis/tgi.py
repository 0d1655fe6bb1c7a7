"""Text Generation Inference as an API: its own routes, which its archived server's clients still call.

One dialect per served model, on the event loop: TGI's parameters and statuses around the shapes of `tgi_compat`.
Source: the TGI 3 API (GenerateRequest, GenerateResponse, StreamResponse, ErrorResponse).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dragoman import __version__
from dragoman.errors import InvalidParameter, InvalidPayload, ServerError
from dragoman.server.api import (
    JSON_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    Call,
    Dialects,
    HttpCall,
    ModelProfile,
    PureDialect,
    Reply,
    json_reply,
    model_of_query_or_header,
)
from dragoman.server.apis.lmi_wire.answers import LMI_RESULTS, LmiResult, LmiResultOfSeveral, TgiLine, TokenEncoder
from dragoman.server.apis.lmi_wire.body import FORM_SCHEMA, body_schemas, read_payload
from dragoman.server.apis.lmi_wire.parameters import TGI, LmiOptions, ParameterReader, parameter_schemas
from dragoman.server.apis.lmi_wire.request import make_requests, read_prompts
from dragoman.server.apis.tei_wire import TeiInfo, TeiRank, root_dialect, tei_info
from dragoman.server.descriptions import (
    BY_NAME,
    GENERATED,
    INVALID,
    LENIENT_BOOLEAN,
    LOADING,
    NON_EMPTY_TEXT,
    QUESTION,
    VERSIONED,
    Answer,
    Content,
    Schema,
    an_object,
    described,
    json_errors,
    merged,
    nullable,
    ref,
    statuses,
)
from dragoman.server.operations import AnswerOperation, Api, GenerateOperation, Server
from dragoman.server.registry import ServedModel
from dragoman.server.security.callers import Scope

STREAM_PATH = "/generate_stream"
TGI_VERSION = "3.3.4"  # whose API these routes speak: clients compare the number to know what they may send
LIST_PATH = "/"  # chooses by the body's `stream`, and wraps a whole answer in a list


class TgiInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `GET /info`, in TGI's order. Units: tokens, except where the name says otherwise.

    `version` is TGI's, `docker_label` ours.
    """

    model_id: str
    model_sha: str | None = None
    model_dtype: str | None = None
    model_device_type: str = "cpu"
    model_pipeline_tag: str = "text-generation"
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    router: str = "dragoman"
    version: str
    sha: str | None = None
    docker_label: str | None = None


class TgiDialect(PureDialect):
    def __init__(self, model: ModelProfile) -> None:
        self._options = LmiOptions(rolling_batch=TGI, model=model)
        self._reader = ParameterReader(self._options)

    def parse(self, http: HttpCall) -> Call:
        payload = read_payload(http)
        if isinstance(payload.inputs, list):
            raise InvalidPayload("Field 'inputs' must be a string here, got an array", param="inputs")
        prompts = read_prompts(payload.inputs)
        parsed = self._reader.read(payload.parameters)
        is_stream = http.path == STREAM_PATH or (http.path == LIST_PATH and payload.stream is True)
        if is_stream and (parsed.values.best_of or 1) > 1:
            raise InvalidParameter(f"best_of must be 1 when streaming, got {parsed.values.best_of}", param="best_of")
        requests, answer, ignored = make_requests(prompts, parsed, self._options, http.request_id, is_stream=is_stream)
        is_list = http.path == LIST_PATH
        useless = ("stream",) if payload.stream and not is_stream else ()  # /generate answers whole, whatever it says
        return Call(
            requests=requests,
            encoder=TokenEncoder("sse", error_body, self._options, answer, is_list=is_list),
            stream=is_stream,
            idle={**dict.fromkeys((*payload.unknown, *useless), ""), **ignored},
        )

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        return json_reply(STATUSES[error.kind], error_body(error))


ErrorType = Literal["generation", "incomplete_generation", "not_found", "overloaded", "unauthorized", "validation"]


class TgiError(msgspec.Struct):
    """An error, as a body or as a stream's last event."""

    error: str
    error_type: ErrorType


STATUSES = statuses(
    **dict.fromkeys((*INVALID, "unsupported", "capacity"), 422),
    **dict.fromkeys(("timeout", "engine_failed", "engine_dead", "hook_error", "server_error"), 424),
    cancelled=500,
)
TYPES: Mapping[int, ErrorType] = {
    401: "unauthorized",
    403: "unauthorized",
    404: "not_found",
    424: "generation",
    429: "overloaded",
    500: "incomplete_generation",
    503: "overloaded",
    507: "overloaded",
}
"""What errors of a status are called, by which clients raise; others are `validation`."""

TGI_ERRORS = json_errors(STATUSES, TgiError)


def error_body(error: ServerError) -> TgiError:
    return TgiError(error.message, TYPES.get(STATUSES[error.kind], "validation"))


NAME = "tgi"
ROOT = f"{NAME}.root"
TAG = "Text Generation Inference"


def set_up(profile: ModelProfile) -> Dialects:
    """On `/`, its sister for embeddings answers for models that embed or score."""
    dialect = TgiDialect(profile)
    return {NAME: dialect, ROOT: dialect if profile.pooling is None else root_dialect(profile)}


async def _info(http: HttpCall, server: Server) -> TgiInfo | TeiInfo:
    model = server.models.find(None)
    return tgi_info(model) if model.pooling is None else tei_info(model, model.pooling.facts)


def tgi_info(model: ServedModel) -> TgiInfo:
    max_model_len = model.engine.capabilities.max_model_len
    return TgiInfo(
        model_id=model.name,
        model_dtype=model.dtype or None,
        model_device_type=model.device,
        max_concurrent_requests=model.admission.limit,
        max_best_of=model.limits.max_best_of,
        max_stop_sequences=model.limits.max_stop_strings,
        # at least one token has to be generated
        max_input_tokens=min(max_model_len - 1, model.limits.max_prompt_tokens or max_model_len),
        max_total_tokens=max_model_len,
        version=TGI_VERSION,
        docker_label=f"dragoman-{__version__}",
    )


def schemas(profile: ModelProfile) -> dict[str, Schema]:
    return {
        **parameter_schemas("TgiParameters", LmiOptions(rolling_batch=TGI, model=profile)),
        "TgiRequest": an_object(
            {"inputs": described(NON_EMPTY_TEXT, "the prompt")},
            {
                "parameters": nullable(ref("TgiParameters")),
                "stream": described(nullable(LENIENT_BOOLEAN), "on `/` only: stream the answer", False),
            },
        ),
        "LmiForm": FORM_SCHEMA,
    }


_EXAMPLE = {"inputs": QUESTION, "parameters": {"max_new_tokens": 32, "details": True}}
_STREAM: Content = {SSE_MEDIA_TYPE: (TgiLine, TgiError)}


def _operation(
    path: str, summary: str, content: Content, example: Mapping[str, Any] = _EXAMPLE, dialect: str = NAME
) -> GenerateOperation:
    return GenerateOperation(
        path=path,
        tag=TAG,
        summary=summary,
        answers=merged({200: Answer("the answer", content, GENERATED)}, TGI_ERRORS.answers()),
        parameters=(*BY_NAME, *VERSIONED),
        body=body_schemas(ref("TgiRequest")),
        example=example,
        dialect=dialect,
        model=model_of_query_or_header,
        also_pools=dialect == ROOT,
    )


API = Api(
    name=NAME,
    title="TGI",
    owns=("/", "/generate", "/generate_stream", "/info"),
    set_up=set_up,
    teller=lambda dialects: dialects[NAME],
    schemas=schemas,
    operations=(
        _operation(
            LIST_PATH,
            "Generate: a list of one answer, or a stream; with a model that embeds or scores, as `/embed` or `/rerank`",
            {JSON_MEDIA_TYPE: (list[LmiResult], list[LmiResultOfSeveral], list[list[float]], list[TeiRank]), **_STREAM},
            {**_EXAMPLE, "stream": True},
            ROOT,
        ),
        _operation("/generate", "Generate", {JSON_MEDIA_TYPE: LMI_RESULTS}),
        _operation(STREAM_PATH, "Generate, streamed", _STREAM),
        AnswerOperation(
            method="GET",
            path="/info",
            tag=TAG,
            summary="The default model and its limits",
            answers=merged(
                {200: Answer("the description", {JSON_MEDIA_TYPE: (TgiInfo, TeiInfo)})},
                TGI_ERRORS.answers(("unauthorized", "not_found", *LOADING)),
            ),
            scope=Scope.INFERENCE,
            answer=_info,
        ),
    ),
)
