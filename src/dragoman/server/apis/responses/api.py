"""OpenAI's Responses API: on `/v1` as OpenAI has it, on `/v3` with OpenVINO Model Server's defaults, texts and events.

On the event loop. Source: OpenAI API reference, responses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

import msgspec

from dragoman.errors import InvalidParameter, InvalidRequest, UnsupportedFeature
from dragoman.parameters import UINT32_MAX
from dragoman.server.api import (
    JSON_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    Dialects,
    HttpCall,
    ModelProfile,
    Reply,
    StreamedReply,
    json_reply,
    model_of_body,
)
from dragoman.server.apis.openai_wire.describe import EFFECTS as SHARED
from dragoman.server.apis.openai_wire.describe import about_fields, struct_body
from dragoman.server.apis.openai_wire.errors import ERRORS
from dragoman.server.apis.openai_wire.fields import (
    BOUNDS,
    MAX_METADATA,
    MAX_METADATA_KEY,
    MAX_METADATA_VALUE,
    either,
    shown,
)
from dragoman.server.apis.openai_wire.sampling import REFUSED as SHARED_REFUSED
from dragoman.server.apis.ovms_wire import ERRORS as OVMS_ERRORS
from dragoman.server.apis.responses.background import Backgrounds
from dragoman.server.apis.responses.dialect import ResponsesDialect
from dragoman.server.apis.responses.items import ROLES
from dragoman.server.apis.responses.request import (
    COMPACTED,
    IGNORED,
    INCLUDES,
    OPENAI_RESPONSES,
    OVMS_RESPONSES,
    REFUSED,
    SUMMARIES,
    TRUNCATIONS,
    VERBOSITIES,
    ResponsesBody,
    ResponsesProfile,
)
from dragoman.server.apis.responses.schema import (
    EVENTS,
    DeletedResponse,
    InputTokens,
    ItemList,
    Response,
    ResponseFailure,
)
from dragoman.server.apis.responses.store import Asking, ResponseDocument, ResponseStore, set_asking
from dragoman.server.batches.desk import PageNames, in_order, page_of
from dragoman.server.descriptions import (
    BOOLEAN,
    COUNTING,
    GENERATED,
    INTEGER,
    NULL,
    QUESTION,
    REFUSING,
    TEXT,
    Answer,
    ErrorFamily,
    Schema,
    any_of,
    array,
    described,
    json_answer,
    nullable,
    parameter,
    range_of,
    ref,
    struct_schemas,
)
from dragoman.server.descriptions import IGNORED as IGNORED_HEADER
from dragoman.server.generation.tokenizing_service import tokenizing_service
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
from dragoman.server.responder import note_ignored, send_streamed
from dragoman.server.security.callers import Scope
from dragoman.tokenizer.message_content import DETAILS
from dragoman.types import Limits

PAGE = PageNames("after", "", 20, 100)  # OpenAI API reference, list input items

# --- one response -----------------------------------------------------------------------------------------------------


def _after(query: Mapping[str, str]) -> int | None:
    text = query.get("starting_after")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise InvalidParameter(
            f"starting_after must be the number of an event, got {shown(text)}", param="starting_after"
        )
    return int(text)


async def retrieve(http: HttpCall, server: Server) -> Response | StreamedReply:
    """The response, as far as it is, or its events. Raises: NotFound, InvalidRequest."""
    _check_include(http.query)
    response_id = http.path_params["response_id"]
    store = await ResponseStore.found(server)
    response = store.known(response_id, http.caller).response
    after = _after(http.query)
    if http.query.get("stream", "").lower() not in ("true", "1"):
        if after is not None:
            raise InvalidParameter("starting_after needs stream=true", param="starting_after")
        return response
    events = server.shared(Backgrounds.of).follow(response_id, -1 if after is None else after)
    if events is None:
        message = "stream must be false: this response was not made with background and stream, or its events are gone"
        raise InvalidParameter(message, param="stream")
    return events


async def delete(http: HttpCall, server: Server) -> DeletedResponse:
    store, response_id = await ResponseStore.found(server), http.path_params["response_id"]
    running = store.running(response_id, http.caller)
    if running is not None:
        _end(running, store, server)
        if not running.response.store:
            return DeletedResponse(response_id)
    store.delete(response_id, http.caller)
    return DeletedResponse(response_id)


async def cancel(http: HttpCall, server: Server) -> Response:
    store, response_id = await ResponseStore.found(server), http.path_params["response_id"]
    running = store.running(response_id, http.caller)
    if running is not None:
        return _end(running, store, server)
    response = store.get(response_id, http.caller).response
    if response.status == "cancelled":
        return response
    raise InvalidRequest(
        f"Response {response_id} cannot be cancelled: its status is {response.status}", param="response_id"
    )


def _end(running: ResponseDocument, store: ResponseStore, server: Server) -> Response:
    server.watch.cancel(running.call_id)
    failure = ResponseFailure("server_error", "the response was cancelled")
    response = msgspec.structs.replace(running.response, status="cancelled", error=failure)
    store.end(response, ())
    return response


async def input_items(http: HttpCall, server: Server) -> ItemList:
    _check_include(http.query)
    store, response_id = await ResponseStore.found(server), http.path_params["response_id"]
    items = store.known(response_id, http.caller).items
    found = in_order([dict(item) for item in items], http.query)
    page, has_more = page_of(found, http.query, PAGE, itemgetter("id"))
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return ItemList(data=page, first_id=first, last_id=last, has_more=has_more)


def _check_include(query: Mapping[str, str]) -> None:
    """Refuses values that are not in `INCLUDES`; those in it are always included."""
    for name in ("include", "include[]"):
        if name in query and query[name] not in INCLUDES:
            message = f"include {shown(query[name])} is not supported: it must be {either(INCLUDES)}"
            raise UnsupportedFeature(message, param="include")


def input_tokens(dialect_name: str) -> AnswerCall:
    async def answer(http: HttpCall, server: Server) -> Reply:
        model = server.models.find(model_of_body(http, server))
        dialect = model.dialects[dialect_name]
        assert isinstance(dialect, ResponsesDialect)
        parsed = dialect.understood(http, Asking(await ResponseStore.found(server), server))
        headers = note_ignored(server.switches.for_call(http.headers), [*dialect.without_effect(parsed)])
        tokens = await tokenizing_service(model).tokenize(parsed.request.prompt)
        return json_reply(200, InputTokens(len(tokens.token_ids)), headers)

    return answer


# --- schemas ----------------------------------------------------------------------------------------------------------

_UINT32 = {"type": "integer", "minimum": 1, "maximum": UINT32_MAX}
_IGNORED = "; told back, and named in `x-dragoman-ignored`"

EFFECTS: Mapping[str, str] = {
    **SHARED,
    "stream_options": "without effect: the last event always tells the usage; refused on `/v3`",
    "max_tokens": "the same as `max_output_tokens`, which wins",
    "input": "a text, which the user says, or items: messages, function calls and their outputs, reasoning",
    "instructions": "a system message before everything else; not carried over by `previous_response_id`",
    "max_output_tokens": "maximum number of tokens to generate, including reasoning; without it, up to the context",
    "max_tool_calls": f"counts calls of built-in tools, of which there are none{_IGNORED}",
    "tools": "the functions that the model may call, flat or in the nested form of conversations",
    "tool_choice": "whether it calls: none, auto, required, one function, or only some (`allowed_tools`)",
    "parallel_tool_calls": "false: only the first call is answered",
    "text": "`format`: text, json_object or json_schema; `verbosity` is told back and has no effect",
    "reasoning": (
        "`effort` reaches the template; with `summary` the reasoning stands in the summary's place; `max_tokens` is "
        "`thinking_token_budget`"
    ),
    "include": "`message.output_text.logprobs`: the log-probabilities of the output; the others change nothing",
    "top_logprobs": (
        "with log-probabilities, this many likeliest tokens at each place; -1: all, if --max-logprobs allows as many"
    ),
    "logprobs": "the same as including `message.output_text.logprobs`; not in streams on `/v3`",
    "background": "whether the call is answered at once, the response made meanwhile; not with `store: false`",
    "truncation": "auto: the oldest items go, until the input fits; disabled: it is refused",
    "previous_response_id": "the stored response that this one goes on from",
    "store": "whether the response can be fetched and gone on from",
    "metadata": "labels, told back",
    "user": f"a label of the end user{_IGNORED}",
    "safety_identifier": f"a label of the end user{_IGNORED}",
    "service_tier": "there is one tier, and the answer says `default`; named in `x-dragoman-ignored`",
    "chat_template_kwargs": "reaches the model's template",
}
_DEFAULTS = {"logprobs": False, "background": False, "truncation": "disabled", "store": True}


def request_body(profile: ResponsesProfile, model: ModelProfile) -> Schema:
    body = struct_body(
        ResponsesBody,
        EFFECTS,
        profile.wire,
        model,
        needed={},
        defaults=_DEFAULTS,
        own=_own_types(profile, model.limits),
        text=about_fields({**SHARED_REFUSED, **REFUSED}, IGNORED, is_lenient=False, also="; built-in tools"),
    )
    for name in REFUSED:
        body["properties"].pop(name, None)
    if not body["required"]:
        del body["required"]
    names = ("input", "previous_response_id")  # null is as good as absent
    return {**body, "anyOf": [{"required": [name], "properties": {name: {"not": NULL}}} for name in names]}


def _own_types(profile: ResponsesProfile, limits: Limits) -> dict[str, Schema]:
    objects = {"type": "object"}
    text: Schema = {"type": "string", "minLength": 1} if profile.wire.refuses_empty_prompt else TEXT
    return {
        "input": any_of(text, array({"$ref": "#/components/schemas/InputItem"}, maxItems=limits.max_messages)),
        "max_output_tokens": _UINT32,
        "max_tokens": _UINT32,
        "max_tool_calls": _UINT32,
        "tools": array(objects, maxItems=limits.max_tools),
        "tool_choice": any_of({"enum": ["none", "auto", "required"]}, objects),
        "include": array({"enum": list(INCLUDES)}),
        "truncation": {"enum": list(TRUNCATIONS)},
        "reasoning": {
            "type": "object",
            "properties": {
                "effort": nullable({"enum": list(profile.efforts)}),
                "summary": nullable({"enum": list(SUMMARIES)}),
                "generate_summary": nullable({"enum": list(SUMMARIES)}),
                "max_tokens": nullable({"type": "integer", **range_of(BOUNDS["thinking_token_budget"])}),
            },
        },
        "metadata": {
            "type": "object",
            "maxProperties": MAX_METADATA,
            "propertyNames": {"maxLength": MAX_METADATA_KEY},
            "additionalProperties": {"type": "string", "maxLength": MAX_METADATA_VALUE},
        },
    }


def request_schemas() -> dict[str, Schema]:
    """The components that the bodies refer to."""
    schemas = struct_schemas([ResponsesBody])
    del schemas["ResponsesBody"]
    schemas["InputItem"]["properties"]["role"] = nullable({"enum": list(ROLES)})
    schemas["InputPart"]["properties"]["detail"] = nullable({"enum": list(DETAILS)})
    schemas["TextOptions"]["properties"]["verbosity"] = nullable({"enum": list(VERBOSITIES)})
    return schemas


PARAMETERS: Mapping[str, dict[str, Any]] = {
    "response_id": parameter("path", "response_id", "the id of a response", TEXT),
    "after": parameter("query", "after", "the id of the item that comes before the page", TEXT),
    "limit": parameter(
        "query",
        "limit",
        "most items on the page",
        described({"type": "integer", "minimum": 1, "maximum": PAGE.most}, "", PAGE.usual),
    ),
    "response_stream_query": parameter("query", "stream", "whether to send its events", BOOLEAN),
    "starting_after_query": parameter("query", "starting_after", "the number of the last event that is known", INTEGER),
    "order": parameter("query", "order", "the last item first, or the first", {"enum": ["asc", "desc"]}),
}

# --- the API ----------------------------------------------------------------------------------------------------------

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
        answers=errors.beside(json_answer(InputTokens, "the count", *IGNORED_HEADER), COUNTING),
        body={JSON_MEDIA_TYPE: ref(body)},
        example={"model": "default", "input": QUESTION},
        answer=input_tokens(dialect),
    )
    yield not_offered(
        f"compact is not supported: {COMPACTED}",
        path=f"{path}/compact",
        tag="Responses",
        summary=f"Not offered: {COMPACTED}",
        answers=errors.answers(REFUSING),
    )
    yield from _of_one(f"{path}/{{response_id}}", errors)


def _of_one(path: str, errors: ErrorFamily) -> Iterator[Operation]:
    def operation(method: str, path: str, answer: AnswerCall, kind: Any, **more: Any) -> AnswerOperation:
        return AnswerOperation(
            method=method,
            path=path,
            tag="Responses",
            scope=Scope.INFERENCE,
            answers=errors.beside(kind if isinstance(kind, Answer) else json_answer(kind), _ABOUT_ONE),
            answer=answer,
            **more,
        )

    yield operation(
        "GET",
        path,
        retrieve,
        Answer("it", {JSON_MEDIA_TYPE: Response, SSE_MEDIA_TYPE: EVENTS}),
        parameters=("response_id", "response_stream_query", "starting_after_query"),
        summary="A stored response, or one that is being made",
        description="With `stream=true` its events, if it was made with `background` and `stream`.",
    )
    yield operation(
        "DELETE",
        path,
        delete,
        DeletedResponse,
        parameters=("response_id",),
        summary="Forget a response; if it is being made, that ends",
    )
    yield operation(
        "POST",
        f"{path}/cancel",
        cancel,
        Response,
        parameters=("response_id",),
        summary="End the making of a response",
    )
    yield operation(
        "GET",
        f"{path}/input_items",
        input_items,
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
