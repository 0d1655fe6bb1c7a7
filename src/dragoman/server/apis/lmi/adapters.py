"""LMI's operations on the adapters of a model: list, describe, register, update, unregister. `server.registry` loads them.

Source: djl-serving's adapter management API.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import Conflict, InvalidRequest, NoMemory, NotFound, ServerError
from dragoman.server.api import HttpCall, Reply, json_reply
from dragoman.server.apis.lmi.errors import (
    LMI_ERRORS,
    MODEL_ERROR,
    FrontError,
    LmiShortError,
    bad_request,
    front_error,
    front_reply,
)
from dragoman.server.apis.lmi.models import Done, in_front_shape, page_of
from dragoman.server.descriptions import BOOLEAN, LOADING, TEXT, Answers, json_answer, merged, parameter
from dragoman.server.hosting import Changes
from dragoman.server.operations import AnswerOperation, Server
from dragoman.server.registry import ServedAdapter, ServedAdapters
from dragoman.server.security.callers import Scope

_NO_PRELOAD = "preload=false is not served: an adapter is loaded when it is registered"


class ListedAdapter(msgspec.Struct, frozen=True):
    """An adapter. Here all are preloaded, and none is dropped to make room."""

    name: str
    src: str
    pin: bool = False
    preload: bool = True


class AdapterPage(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """One page of the list; `next_page_token` is there if more follow."""

    adapters: list[ListedAdapter]
    next_page_token: str | UnsetType = UNSET


def _adapters(http: HttpCall, server: Server) -> ServedAdapters:
    found = server.models.find(http.path_params.get("name")).adapters
    if found is None:
        raise InvalidRequest("LoRA is not enabled.")  # LMI's own words
    return found


def _described(adapter: ServedAdapter) -> ListedAdapter:
    return ListedAdapter(adapter.name, adapter.source)


async def _list(http: HttpCall, server: Server) -> Any:
    listed, following = page_of(_adapters(http, server).all(), http.query)
    return AdapterPage(adapters=[_described(adapter) for adapter in listed], next_page_token=following or UNSET)


async def _one(http: HttpCall, server: Server) -> Any:
    return _described(_adapters(http, server).get(http.path_params["adapter"]))


async def _register(http: HttpCall, server: Server) -> Any:
    adapters, name, source = _adapters(http, server), http.query.get("name", ""), http.query.get("src", "")
    for key, value in (("name", name), ("src", source)):
        if not value:
            raise InvalidRequest(f"Parameter {key} is required.", param=key)
    if not _switch(http, "preload", default=True):
        return _model_error("pin=true needs preload=true" if _switch(http, "pin", default=False) else _NO_PRELOAD)
    if not adapters.can_change:
        return bad_request("Adapters are fixed here: start the server with --enable-lora to register others")
    try:
        await server.shared(Changes.of).run(adapters.load(name, source))
    except InvalidRequest as error:
        return _model_error(error.message)
    return Done(f"Adapter {name} registered")


async def _update(http: HttpCall, server: Server) -> Any:
    name = _adapters(http, server).get(http.path_params["adapter"]).name
    if not _switch(http, "preload", default=True):
        return _model_error(_NO_PRELOAD)
    if "pin" in http.query and not _switch(http, "pin", default=True):
        return _model_error("unpin adapter is not supported")
    return Done(f"Adapter {name} updated")


async def _unregister(http: HttpCall, server: Server) -> Any:
    adapters, name = _adapters(http, server), http.path_params["adapter"]
    adapters.get(name)
    if not adapters.can_change:
        return bad_request("Adapters are fixed here: start the server with --enable-lora to unregister them")
    await server.shared(Changes.of).run(adapters.unload(name))
    return Done(f"Adapter {name} unregistered")


def _switch(http: HttpCall, name: str, *, default: bool) -> bool:
    text = http.query.get(name, "").lower()
    if text not in ("", "true", "false"):
        raise InvalidRequest(f"Parameter {name} must be true or false, got {text}", param=name)
    return text == "true" if text else default


def _model_error(message: str) -> Reply:
    return json_reply(MODEL_ERROR, LmiShortError(message, MODEL_ERROR))


def _refusal(error: ServerError) -> Reply:
    if isinstance(error, NotFound) and error.param != "model":
        return front_error(404, "AdapterNotFoundException", error.message)
    return front_reply(error)


_told = partial(in_front_shape, kinds=(NotFound, Conflict, NoMemory, InvalidRequest), tell=_refusal)

PARAMETERS = {
    "adapter_path": parameter("path", "adapter", "the adapter's name", TEXT),
    "adapter_name": parameter("query", "name", "what requests are to call the adapter", TEXT),
    "adapter_src": parameter(
        "query", "src", "its directory: below the adapter store, or the folder adapters beside the model", TEXT
    ),
    "adapter_preload": parameter("query", "preload", "only true is served", {**BOOLEAN, "default": True}),
    "adapter_pin": parameter("query", "pin", "without effect: no adapter is dropped to make room", BOOLEAN),
}

_operation = partial(AnswerOperation, tag="Adapters", scope=Scope.MANAGEMENT)
_DONE: Answers = {200: json_answer(Done, "it is done")}
_WRONG: Answers = {400: json_answer(FrontError, "the call is wrong, or adapters are not enabled")}
_REFUSED = LMI_ERRORS.answers(("invalid_request",))


def _operations(path: str, *names: str) -> tuple[AnswerOperation, ...]:
    errors = merged(_WRONG, LMI_ERRORS.answers(("unauthorized", "not_found", *LOADING)))
    changing = merged(errors, LMI_ERRORS.answers(("conflict", "no_memory", "overloaded")))
    return (
        _operation(
            path=f"{path}/{{adapter}}/update",
            summary="Confirm that an adapter is loaded",
            answers=merged(_DONE, errors, _REFUSED),
            parameters=(*names, "adapter_path", "adapter_preload", "adapter_pin"),
            answer=_told(_update),
        ),
        _operation(
            method="GET",
            path=path,
            summary="The adapters of a model",
            answers=merged({200: json_answer(AdapterPage, "the list")}, errors),
            parameters=(*names, "limit_query", "next_page_token_query"),
            answer=_told(_list),
        ),
        _operation(
            path=path,
            summary="Load an adapter",
            answers=merged(_DONE, changing, _REFUSED),
            parameters=(*names, "adapter_name", "adapter_src", "adapter_preload", "adapter_pin"),
            answer=_told(_register),
        ),
        _operation(
            method="GET",
            path=f"{path}/{{adapter}}",
            summary="One adapter",
            answers=merged({200: json_answer(ListedAdapter, "the adapter")}, errors),
            parameters=(*names, "adapter_path"),
            answer=_told(_one),
        ),
        _operation(
            method="DELETE",
            path=f"{path}/{{adapter}}",
            summary="Unload an adapter",
            description="Requests that run go on with it.",
            answers=merged(_DONE, errors),
            parameters=(*names, "adapter_path"),
            answer=_told(_unregister),
        ),
    )


OPERATIONS = (*_operations("/adapters"), *_operations("/models/{name}/adapters", "name_path"))
