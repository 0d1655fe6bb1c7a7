"""SageMaker's runtime as an API: what AWS clients call when their endpoint_url points here, around LMI's answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from dragoman.errors import ALL_KINDS, Forbidden, RateLimited
from dragoman.server.api import JSON_MEDIA_TYPE, HttpCall, model_of_query_or_header
from dragoman.server.apis.lmi import describe
from dragoman.server.apis.lmi.api import schemas as lmi_schemas
from dragoman.server.apis.lmi.choose import INPUTS, TARGET_MODEL, borrow_target, dialect_of_body, target_of
from dragoman.server.apis.lmi.front.deferred import POLLING_FIELDS, Polling
from dragoman.server.apis.sagemaker.envelope import (
    FRONT_ERRORS,
    MODEL_ERROR,
    AwsError,
    SageMakerDialect,
    SageMakerError,
    model_error,
)
from dragoman.server.apis.sagemaker.eventstream import EVENTSTREAM_MEDIA_TYPE
from dragoman.server.describe.answers import Answers, Content, ErrorFamily, json_answer, merged
from dragoman.server.describe.components import BY_NAME, VERSIONED, header, parameter
from dragoman.server.describe.json_schema import TEXT, Schema
from dragoman.server.operations import Api, GenerateOperation, Server

ERRORS = ErrorFamily(
    {
        **dict.fromkeys(ALL_KINDS, MODEL_ERROR),
        **{kind.kind: FRONT_ERRORS[kind][0] for kind in (Forbidden, RateLimited)},
    },
    lambda status: {JSON_MEDIA_TYPE: SageMakerError if status == MODEL_ERROR else AwsError},
)

_TARGET_ERRORS: Answers = {
    400: json_answer(AwsError, "ValidationError: there is no such target model"),
    424: json_answer(SageMakerError, "the target model does not fit into the memory that is left"),
}
_REFUSED: Answers = {403: json_answer(AwsError, "the signature does not match")}

_EVENT_STREAM: Mapping[str, Schema] = {
    EVENTSTREAM_MEDIA_TYPE: {
        "type": "string",
        "format": "binary",
        "description": "PayloadPart messages whose payloads are the container's stream; a failure in the middle is a "
        "ModelStreamError message",
    }
}


def _model_of_endpoint(http: HttpCall, server: Server) -> str | None:
    """The target model or component that the call names, else the model called like the endpoint, else the default."""
    target = target_of(http)
    component = http.headers.get("x-amzn-sagemaker-inference-component", "")
    name = http.path_params["name"]
    named = target or component or model_of_query_or_header(http, server)
    return named or (name if server.models.knows(name) else None)


def _operation(path: str, summary: str, content: Content, *, is_stream: bool, text: str) -> GenerateOperation:
    ok = describe.answered(content, "the container's answer", "x-Amzn-Invoked-Production-Variant")
    return GenerateOperation(
        path=path,
        tag="SageMaker",
        summary=summary,
        answers=merged(ok, describe.DEFERRED, ERRORS.answers(), _TARGET_ERRORS, _REFUSED),
        description=f"{text} Where key pairs are set, signatures are checked. {describe.TEXT_OF_ALL}",
        parameters=(
            "endpoint_name",
            *BY_NAME,
            *VERSIONED,
            *describe.POLLING,
            TARGET_MODEL,
            "x-amzn-sagemaker-inference-component",
        ),
        body=describe.BODIES,
        example=describe.EXAMPLE,
        dialect=dialect_of_body,
        model=_model_of_endpoint,
        borrow=borrow_target,
        wrap=partial(SageMakerDialect, is_stream=is_stream),
        before=Polling(model_error),
        before_fields=POLLING_FIELDS,
        also_pools=True,
    )


API = Api(
    name="sagemaker",
    title="SageMaker",
    owns=("/endpoints",),
    teller=lambda dialects: SageMakerDialect(dialects[INPUTS]),
    schemas=lmi_schemas,
    needs_engine=False,
    operations=(
        _operation(
            "/endpoints/{name}/invocations",
            "SageMaker's InvokeEndpoint",
            describe.CONTENT,
            is_stream=False,
            text="What AWS clients call when their endpoint_url points here.",
        ),
        _operation(
            "/endpoints/{name}/invocations-response-stream",
            "SageMaker's InvokeEndpointWithResponseStream",
            _EVENT_STREAM,
            is_stream=True,
            text="What AWS clients call for streams; `X-Amzn-SageMaker-Accept` takes the place of `Accept`.",
        ),
    ),
    parameters={
        **describe.PARAMETERS,
        "endpoint_name": parameter("path", "name", "a model's name; any other name means the default model", TEXT),
        "x-amzn-sagemaker-inference-component": parameter(
            "header", "X-Amzn-SageMaker-Inference-Component", "the model to use", TEXT
        ),
    },
    headers={
        **describe.HEADERS,
        "x-Amzn-Invoked-Production-Variant": header("the variant that was asked for, or the only one"),
    },
)
