"""Text Generation Inference as an API: its own routes, which its archived server's clients still call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman import __version__
from dragoman.server.api import (
    JSON_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    Dialects,
    HttpCall,
    ModelProfile,
    model_of_query_or_header,
)
from dragoman.server.apis.lmi_wire.body import FORM
from dragoman.server.apis.lmi_wire.describe import form, parameters
from dragoman.server.apis.lmi_wire.objects import LMI_RESULTS, LmiResult, LmiResultOfSeveral, TgiLine
from dragoman.server.apis.lmi_wire.parameters.table import TGI, rows_for
from dragoman.server.apis.tei_wire import TeiInfo, TeiRank, root_dialect, tei_info
from dragoman.server.apis.tgi.dialect import (
    LIST_PATH,
    STREAM_PATH,
    TGI_ERRORS,
    TGI_VERSION,
    TgiDialect,
    TgiError,
    TgiInfo,
)
from dragoman.server.describe.answers import LOADING, Answer, Content, merged
from dragoman.server.describe.components import BY_NAME, GENERATED, QUESTION, VERSIONED
from dragoman.server.describe.json_schema import (
    LENIENT_BOOLEAN,
    NON_EMPTY_TEXT,
    TEXT,
    Schema,
    an_object,
    described,
    nullable,
    ref,
)
from dragoman.server.http.multipart import MULTIPART
from dragoman.server.operations import AnswerOperation, Api, GenerateOperation, Server
from dragoman.server.registry import ServedModel
from dragoman.server.security.scopes import Scope

NAME = "tgi"
ROOT = f"{NAME}.root"
TAG = "Text Generation Inference"


def set_up(profile: ModelProfile) -> Dialects:
    """On `/`, its sister for embeddings answers for models that embed or score."""
    own = TgiDialect(profile)
    return {NAME: own, ROOT: own if profile.pooling is None else root_dialect(profile)}


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
        **parameters("TgiParameters", rows_for(TGI), TGI, "", profile.limits),
        "TgiRequest": an_object(
            {"inputs": described(NON_EMPTY_TEXT, "the prompt")},
            {
                "parameters": nullable(ref("TgiParameters")),
                "stream": described(nullable(LENIENT_BOOLEAN), "on `/` only: stream the answer", False),
            },
        ),
        "LmiForm": form(),
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
        body={
            JSON_MEDIA_TYPE: ref("TgiRequest"),
            "text/plain": {**TEXT, "minLength": 1, "description": "the prompt"},
            FORM: ref("LmiForm"),
            MULTIPART: ref("LmiForm"),
        },
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
