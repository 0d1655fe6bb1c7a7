"""OpenAI's Responses API: on `/v1` as OpenAI has it, on `/v3` with OpenVINO Model Server's defaults, texts and events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dragoman.server.api import (
    JSON_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    Dialects,
    HttpCall,
    ModelProfile,
    StreamedReply,
    model_of_body,
)
from dragoman.server.apis.openai_wire.errors import ERRORS, without_code
from dragoman.server.apis.ovms_wire.errors import ERRORS as OVMS_ERRORS
from dragoman.server.apis.responses import stored
from dragoman.server.apis.responses.background import Backgrounds
from dragoman.server.apis.responses.describe import PARAMETERS, request_body, request_schemas
from dragoman.server.apis.responses.dialect import ResponsesDialect
from dragoman.server.apis.responses.profiles import OPENAI_RESPONSES, OVMS_RESPONSES
from dragoman.server.apis.responses.request import COMPACTED
from dragoman.server.apis.responses.schema import EVENTS, DeletedResponse, InputTokens, ItemList, Response
from dragoman.server.apis.responses.store import Asking, ResponseStore, set_asking
from dragoman.server.describe.answers import COUNTING, REFUSING, Answer, ErrorFamily, json_answer
from dragoman.server.describe.components import GENERATED, IGNORED, QUESTION
from dragoman.server.describe.json_schema import Schema, ref
from dragoman.server.http.exchange import Exchange
from dragoman.server.operations import (
    AnswerCall,
    AnswerOperation,
    Api,
    GenerateOperation,
    Operation,
    Proceed,
    Server,
    not_offered,
)
from dragoman.server.responder import send_streamed
from dragoman.server.security.scopes import Scope

V1 = "responses.v1"
V3 = "responses.v3"

_EXAMPLE = {"model": "default", "input": QUESTION, "max_output_tokens": 32, "temperature": 0, "stream": True}
_ABOUT_ONE = ("unauthorized", "not_found", "invalid_request", "invalid_parameter", "unsupported")


def set_up(profile: ModelProfile) -> Dialects:
    return {
        V1: ResponsesDialect(profile, OPENAI_RESPONSES),
        V3: ResponsesDialect(profile, OVMS_RESPONSES),
    }


def _schemas(profile: ModelProfile) -> dict[str, Schema]:
    return {
        **request_schemas(),
        "ResponsesRequestV1": request_body(OPENAI_RESPONSES, profile),
        "ResponsesRequestV3": request_body(OVMS_RESPONSES, profile),
    }


async def enter_call(exchange: Exchange, http: HttpCall, server: Server, proceed: Proceed) -> bool:
    """`before` of the operations that make responses; answers those of the background."""
    asking = Asking(await ResponseStore.found(server), server)
    set_asking(asking)
    await http.decoded()
    if http.field("background") is not True:
        return False
    answer = await server.shared(Backgrounds.of).begin(exchange, asking, proceed)
    if isinstance(answer, StreamedReply):
        await send_streamed(exchange, answer, http)
    else:
        await exchange.send_reply(answer)
    return True


def _operations(path: str, dialect: str, errors: ErrorFamily, body: str, server_name: str) -> Iterator[Operation]:
    content = {JSON_MEDIA_TYPE: Response, SSE_MEDIA_TYPE: EVENTS}
    yield GenerateOperation(
        path=path,
        tag="Responses",
        summary=f"A response, as {server_name} makes it",
        description="Streams are server-sent events with numbers, from `response.created` to `response.completed`.",
        answers=errors.beside(Answer("the response", content, GENERATED)),
        body={JSON_MEDIA_TYPE: ref(body)},
        example=_EXAMPLE,
        dialect=dialect,
        model=model_of_body,
        before=enter_call,
    )
    yield AnswerOperation(
        path=f"{path}/input_tokens",
        tag="Responses",
        scope=Scope.INFERENCE,
        summary="How many tokens the input of a response would have",
        answers=errors.beside(json_answer(InputTokens, "the count", *IGNORED), COUNTING),
        body={JSON_MEDIA_TYPE: ref(body)},
        example={"model": "default", "input": QUESTION},
        answer=stored.input_tokens(dialect),
    )
    yield not_offered(
        f"compact is not supported: {COMPACTED}",
        path=f"{path}/compact",
        tag="Responses",
        summary=f"Not offered: {COMPACTED}",
        answers=errors.answers(REFUSING),
    )
    yield from _of_one(f"{path}/{{response_id}}", dialect, errors)


def _of_one(path: str, dialect: str, errors: ErrorFamily) -> Iterator[Operation]:
    told = without_code if dialect == V1 else lambda answer: answer

    def operation(method: str, path: str, answer: AnswerCall, kind: Any, **more: Any) -> AnswerOperation:
        return AnswerOperation(
            method=method,
            path=path,
            tag="Responses",
            scope=Scope.INFERENCE,
            answers=errors.beside(kind if isinstance(kind, Answer) else json_answer(kind), _ABOUT_ONE),
            answer=told(answer),
            **more,
        )

    yield operation(
        "GET",
        path,
        stored.retrieve,
        Answer("it", {JSON_MEDIA_TYPE: Response, SSE_MEDIA_TYPE: EVENTS}),
        parameters=("response_id", "response_stream_query", "starting_after_query"),
        summary="A stored response, or one that is being made",
        description="With `stream=true` its events, if it was made with `background` and `stream`.",
    )
    yield operation(
        "DELETE",
        path,
        stored.delete,
        DeletedResponse,
        parameters=("response_id",),
        summary="Forget a response; if it is being made, that ends",
    )
    yield operation(
        "POST",
        f"{path}/cancel",
        stored.cancel,
        Response,
        parameters=("response_id",),
        summary="End the making of a response",
    )
    yield operation(
        "GET",
        f"{path}/input_items",
        stored.input_items,
        ItemList,
        summary="What a response was made of",
        parameters=("response_id", "after", "limit", "order"),
    )


API = Api(
    name="responses",
    title="Responses",
    set_up=set_up,
    schemas=_schemas,
    parameters=PARAMETERS,
    operations=(
        *_operations("/v1/responses", V1, ERRORS, "ResponsesRequestV1", "OpenAI"),
        *_operations("/v3/responses", V3, OVMS_ERRORS, "ResponsesRequestV3", "OpenVINO Model Server"),
    ),
)
