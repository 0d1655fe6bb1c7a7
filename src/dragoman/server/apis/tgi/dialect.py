"""The dialect of Text Generation Inference's own routes: TGI's parameters and statuses around the shapes of `tgi_compat`.

One instance per served model, on the event loop.
Source: the TGI 3 API (GenerateRequest, GenerateResponse, StreamResponse, ErrorResponse).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from dragoman.errors import InvalidParameter, InvalidPayload, ServerError
from dragoman.server.api import Call, HttpCall, ModelProfile, PureDialect, Reply, json_reply
from dragoman.server.apis.lmi_wire.body import read_payload
from dragoman.server.apis.lmi_wire.encode import TokenEncoder
from dragoman.server.apis.lmi_wire.objects import Shape
from dragoman.server.apis.lmi_wire.parameters.reader import ParameterReader
from dragoman.server.apis.lmi_wire.parameters.table import TGI
from dragoman.server.apis.lmi_wire.request import Rules, make_requests, read_prompts
from dragoman.server.describe.answers import json_errors
from dragoman.server.error_kinds import INVALID, statuses

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
        self._reader = ParameterReader(TGI, "", model, is_clipped=False)
        self._rules = Rules(sampling="not_neutral", model=model, includes_stop=True)
        self._shape = Shape(is_tgi=True, is_tgi_route=True)

    def parse(self, http: HttpCall) -> Call:
        payload = read_payload(http)
        if isinstance(payload.inputs, list):
            raise InvalidPayload("Field 'inputs' must be a string here, got an array", param="inputs")
        prompts = read_prompts(payload.inputs)
        parsed = self._reader.read(payload.parameters)
        is_stream = http.path == STREAM_PATH or (http.path == LIST_PATH and payload.stream is True)
        if is_stream and (parsed.values.best_of or 1) > 1:
            raise InvalidParameter(f"best_of must be 1 when streaming, got {parsed.values.best_of}", param="best_of")
        requests, answer, ignored = make_requests(prompts, parsed, self._rules, http.request_id, is_stream=is_stream)
        is_list = http.path == LIST_PATH
        useless = ("stream",) if payload.stream and not is_stream else ()  # /generate answers whole, whatever it says
        return Call(
            requests=requests,
            encoder=TokenEncoder("sse", error_body, self._shape, answer, is_list=is_list),
            stream=is_stream,
            ignored=tuple(dict.fromkeys((*payload.unknown, *useless, *ignored))),
            reasons=ignored,
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
