"""The operations on responses that exist, and the count of an input's tokens. On the event loop.

Source: OpenAI API reference, responses, retrieve, input_items, delete, cancel, input_tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

import msgspec

from dragoman.errors import InvalidParameter, InvalidRequest, UnsupportedFeature
from dragoman.server.api import HttpCall, Reply, StreamedReply, json_reply, model_of_body
from dragoman.server.apis.openai_wire.fields import either, shown
from dragoman.server.apis.responses.background import Backgrounds
from dragoman.server.apis.responses.dialect import ResponsesDialect
from dragoman.server.apis.responses.request import INCLUDES
from dragoman.server.apis.responses.schema import DeletedResponse, InputTokens, ItemList, Response, ResponseFailure
from dragoman.server.apis.responses.store import Asking, Item, ResponseStore, Running
from dragoman.server.batches.keeping import PageNames, in_order, page_of
from dragoman.server.generation.text_service import text_service
from dragoman.server.operations import AnswerCall, Server
from dragoman.server.responder import note_ignored

PAGE = PageNames("after", "", 20, 100)  # OpenAI API reference, list input items


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
    running = store.running(response_id, http.caller)
    response = store.get(response_id, http.caller).response if running is None else running.response
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


def _end(running: Running, store: ResponseStore, server: Server) -> Response:
    server.watch.cancel(running.call_id)
    failure = ResponseFailure("server_error", "the response was cancelled")
    response = msgspec.structs.replace(running.response, status="cancelled", error=failure)
    store.end(response, ())
    return response


async def input_items(http: HttpCall, server: Server) -> ItemList:
    _check_include(http.query)
    store, response_id = await ResponseStore.found(server), http.path_params["response_id"]
    running = store.running(response_id, http.caller)
    items: Sequence[Item] = store.get(response_id, http.caller).items if running is None else running.items
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
        headers = note_ignored(server.switches.for_call(http.headers), dialect.without_effect(parsed))
        tokens = await text_service(model).tokenize(parsed.request.prompt)
        return json_reply(200, InputTokens(len(tokens.token_ids)), headers)

    return answer
