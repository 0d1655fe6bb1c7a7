"""The operations on responses that exist: fetch, list what they were made of, delete, cancel; and count an input's tokens.

Does: look up the caller's own responses, end the call that makes one. Does not: generate. On the event loop.
Source: OpenAI API reference, responses, retrieve, input_items, delete, cancel, input_tokens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from dragoman.errors import InvalidParameter, InvalidRequest, NotFound, ServerError, UnsupportedFeature
from dragoman.server.api import HttpCall, Reply, StreamedReply, json_reply
from dragoman.server.apis.openai_wire.errors import OpenAiError, OpenAiErrorDetails
from dragoman.server.apis.openai_wire.fields import shown
from dragoman.server.apis.responses.asking import Asking
from dragoman.server.apis.responses.background import Backgrounds
from dragoman.server.apis.responses.dialect import ResponsesDialect, model_named
from dragoman.server.apis.responses.request import COMPACTED, INCLUDES
from dragoman.server.apis.responses.schema import DeletedResponse, InputTokens, ItemList, Response, ResponseFailure
from dragoman.server.apis.responses.store import Item, ResponseStore, Running
from dragoman.server.generation.text_service import text_service
from dragoman.server.operations import Server
from dragoman.server.responder import note_ignored

MAX_PAGE = 100  # items; OpenAI API reference, list input items, limit
PAGE = 20  # the same: the default

Answering = Callable[[HttpCall, Server], Awaitable[Any]]


def _after(query: Mapping[str, str]) -> int | None:
    """The number of the last event that the client has. Raises: InvalidParameter."""
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
    """Forget it; if it is being made, that ends. Raises: NotFound."""
    store, response_id = await ResponseStore.found(server), http.path_params["response_id"]
    running = store.running(response_id, http.caller)
    if running is not None:
        _end(running, store, server)
        if not running.response.store:
            return DeletedResponse(response_id)
    store.delete(response_id, http.caller)
    return DeletedResponse(response_id)


async def cancel(http: HttpCall, server: Server) -> Response:
    """End the making of it; a response that was cancelled stays so. Raises: NotFound, InvalidRequest."""
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
    """Cancel the call, wherever it is: in the queue, at its prompt, or between two tokens."""
    server.watch.cancel(running.call_id)
    failure = ResponseFailure("server_error", "the response was cancelled")
    response = msgspec.structs.replace(running.response, status="cancelled", error=failure)
    store.end(response, ())
    return response


async def input_items(http: HttpCall, server: Server) -> ItemList:
    """A page of everything that the model was given for it. Raises: NotFound, InvalidParameter."""
    _check_include(http.query)
    store, response_id = await ResponseStore.found(server), http.path_params["response_id"]
    running = store.running(response_id, http.caller)
    items: Sequence[Item] = store.get(response_id, http.caller).items if running is None else running.items
    order = http.query.get("order") or "desc"
    if order not in ("asc", "desc"):
        raise InvalidParameter(f"order must be asc or desc, got {shown(order)}", param="order")
    found = [dict(item) for item in items]
    if order == "desc":
        found.reverse()
    limit, begin = _limit(http.query), _begin(http.query, found)
    page = found[begin : begin + limit]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return ItemList(data=page, first_id=first, last_id=last, has_more=begin + limit < len(found))


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit") or str(PAGE)
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= MAX_PAGE):
        raise InvalidParameter(f"limit must be an integer from 1 to {MAX_PAGE}, got {shown(text)}", param="limit")
    return int(text)


def _begin(query: Mapping[str, str], items: Sequence[Item]) -> int:
    """The index where the page begins: after the item that `after` names."""
    after = query.get("after")
    if not after:
        return 0
    for position, item in enumerate(items):
        if item["id"] == after:
            return position + 1
    raise InvalidParameter(f"after must be the id of an item of this response, got {shown(after)}", param="after")


def _check_include(query: Mapping[str, str]) -> None:
    """Raises: UnsupportedFeature for a value of `include` not in `INCLUDES`; those in it are always included."""
    for name in ("include", "include[]"):
        if name in query and query[name] not in INCLUDES:
            message = f"include {shown(query[name])} is not supported: it must be {', '.join(INCLUDES[:-1])} or "
            raise UnsupportedFeature(message + INCLUDES[-1], param="include")


def input_tokens(dialect_name: str) -> Answering:
    """Counts what a body's input would be, for the model that it names."""

    async def answer(http: HttpCall, server: Server) -> Reply:
        model = server.models.find(model_named(http))
        dialect = model.dialects[dialect_name]
        assert isinstance(dialect, ResponsesDialect)
        parsed = dialect.understood(http, Asking(await ResponseStore.found(server), server))
        headers = note_ignored(server.switches.for_call(http.headers), dialect.without_effect(parsed))
        tokens = await text_service(model).tokenize(parsed.request.prompt)
        return json_reply(200, InputTokens(len(tokens.token_ids)), headers)

    return answer


async def compact(http: HttpCall, server: Server) -> NoReturn:
    """Refuse. Raises: UnsupportedFeature."""
    raise UnsupportedFeature(f"compact is not supported: {COMPACTED}")


def or_missing(answer: Answering) -> Answering:
    """The same, but that OpenAI's API has no code for a response which is not there, only for models."""

    async def answering(http: HttpCall, server: Server) -> Any:
        try:
            return await answer(http, server)
        except NotFound as error:
            return missing(error)

    return answering


def missing(error: ServerError) -> Reply:
    """404, without the code that means models."""
    return json_reply(404, OpenAiError(OpenAiErrorDetails(error.message, "invalid_request_error", "response_id", None)))
