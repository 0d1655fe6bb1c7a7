"""AWS Large Model Inference as an API: what LMI's containers serve, their model lists and their front end included."""

from __future__ import annotations

from functools import partial
from typing import Any

from dragoman.errors import InvalidParameter
from dragoman.server.api import HttpCall, ModelProfile, model_of_body, model_of_query_or_header
from dragoman.server.apis.lmi.choose import INPUTS, dialect_of_body, sole_model_if_unknown
from dragoman.server.apis.lmi.conversations import LMI
from dragoman.server.apis.lmi.describe.bodies import request_bodies
from dragoman.server.apis.lmi.describe.operations import (
    ANSWERS,
    BODIES,
    EXAMPLE,
    HEADERS,
    PARAMETERS,
    POLLING,
    TEXT_OF_ALL,
)
from dragoman.server.apis.lmi.dialects import options_of, set_up
from dragoman.server.apis.lmi.errors import LMI_ERRORS, FrontError, bad_request
from dragoman.server.apis.lmi.front.deferred import CUSTOM_ATTRIBUTES
from dragoman.server.apis.lmi.front.models import DEFAULT_PAGE_SIZE, ModelPage, Workflow, lmi_model, lmi_models
from dragoman.server.apis.lmi.front.polling import Polling
from dragoman.server.apis.openai_wire.chat.dialect import LMI_STRICT_MAX_TOKENS
from dragoman.server.apis.openai_wire.describe.bodies import chat_body, completion_body, shared_schemas
from dragoman.server.describe.answers import LOADING, json_answer, merged
from dragoman.server.describe.components import BY_NAME, VERSIONED, parameter
from dragoman.server.describe.json_schema import Schema
from dragoman.server.model_facts import facts_of
from dragoman.server.operations import AnswerOperation, Api, GenerateOperation, Refusal, Server

NO_LORA = bad_request("LoRA is not enabled.")  # LMI's own answer where adapters are off


def model_of_invocation(http: HttpCall, server: Server) -> str | None:
    """The model that query or header name, else the one that the body of a conversation or completion names."""
    named = model_of_query_or_header(http, server)
    if named or dialect_of_body(http) == INPUTS:
        return named
    return sole_model_if_unknown(model_of_body(http, server), server)


def _model_of_path(http: HttpCall, server: Server) -> str | None:
    return http.path_params["model"]


async def _models(http: HttpCall, server: Server) -> Any:
    try:
        return lmi_models([facts_of(model) for model in server.models.models], http.query)
    except InvalidParameter as error:  # not a generation parameter: the front end's own shape
        return bad_request(error.message)


async def _model(http: HttpCall, server: Server) -> Any:
    return lmi_model(facts_of(server.models.find(http.path_params["name"])))


def schemas(profile: ModelProfile) -> dict[str, Schema]:
    """The components that LMI's operations, and SageMaker's around them, refer to."""
    strict = {"max_tokens": LMI_STRICT_MAX_TOKENS} if profile.settings.get("lmi_strict") else {}
    return {
        **shared_schemas(),
        **request_bodies(options_of(profile)),
        "ChatRequestInvocations": chat_body(LMI, profile.limits, strict),
        "CompletionRequestInvocations": completion_body(LMI, profile.limits),
    }


def _description(profile: ModelProfile) -> str:
    options = options_of(profile)
    return (
        f"rolling_batch={options.rolling_batch}, lmi_version={options.lmi_version}, "
        f"tgi_compat={str(options.tgi_compat).lower()}"
    )


def _count(low: int, default: int) -> Schema:
    return {"anyOf": [{"type": "integer", "minimum": low}, {"const": ""}], "default": default}


_EMPTY = "; an empty value counts as absent"

_generate = partial(
    GenerateOperation,
    tag="LMI",
    answers=ANSWERS,
    description=TEXT_OF_ALL,
    body=BODIES,
    example=EXAMPLE,
    dialect=dialect_of_body,
    before=Polling(),
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
            parameters=(*BY_NAME, *VERSIONED, *POLLING),
            model=model_of_invocation,
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
        AnswerOperation(
            method="GET",
            path="/models",
            tag="Models",
            summary="The models, as LMI lists them",
            answers=merged(
                {200: json_answer(ModelPage, "the list")},
                LMI_ERRORS.answers(("unauthorized",)),
                {400: json_answer(FrontError, "`limit` or `next_page_token` is wrong")},
            ),
            parameters=("limit_query", "next_page_token_query"),
            in_banner=False,
            answer=_models,
        ),
        AnswerOperation(
            method="GET",
            path="/models/{name}",
            tag="Models",
            summary="One model with its queue and workers",
            answers=merged(
                {200: json_answer(list[Workflow], "the description")},
                LMI_ERRORS.answers(("unauthorized", "not_found", *LOADING)),
            ),
            parameters=("name_path",),
            in_banner=False,
            answer=_model,
        ),
    ),
    refusals=tuple(
        Refusal(path=path, methods=("GET", "POST", "DELETE"), reply=NO_LORA)
        for path in ("/adapters", "/adapters/{adapter}", "/models/{name}/adapters")
    ),
    parameters={
        **PARAMETERS,
        "limit_query": parameter("query", "limit", f"most models on a page{_EMPTY}", _count(1, DEFAULT_PAGE_SIZE)),
        "next_page_token_query": parameter("query", "next_page_token", f"where the page begins{_EMPTY}", _count(0, 0)),
    },
    headers=HEADERS,
    # LMI runs inside SageMaker's containers: clients of AWS name requests, and send header fields, in these
    request_id_headers=("x-amzn-sagemaker-inference-id",),
    folded_headers=(CUSTOM_ATTRIBUTES,),
)
