"""LMI's operations on models: list, describe, register, scale or replace, unregister. `hosting` loads and unloads.

Sources: djl-serving's management API, as its own test client reads it; SageMaker's contract for containers of multi-model
endpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial, wraps
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import Conflict, EngineFailed, InvalidParameter, InvalidRequest, NotFound, ServerError, Unavailable
from dragoman.server.api import JSON_MEDIA_TYPE, HttpCall, Reply, json_reply
from dragoman.server.apis.lmi.errors import LMI_ERRORS, FrontError, front_reply
from dragoman.server.apis.lmi.registration import Registration, Scheduled, read_registration
from dragoman.server.apis.lmi_wire.body import FORM
from dragoman.server.apis.openai_wire.routes import OpenAiModel, openai_model
from dragoman.server.descriptions import (
    BOOLEAN,
    IGNORED,
    INTEGER,
    LOADING,
    TEXT,
    Answers,
    Schema,
    an_object,
    any_of,
    described,
    json_answer,
    merged,
    parameter,
    ref,
)
from dragoman.server.hosting import Changes, ModelHosting, ModelSource, ModelState, ModelStatus
from dragoman.server.http.fields import refuse_ignored
from dragoman.server.model_facts import READY, ModelFacts, facts_of, facts_of_status
from dragoman.server.operations import AnswerCall, AnswerOperation, Server
from dragoman.server.registry import ServedModel
from dragoman.server.responder import ignored_header
from dragoman.server.security.callers import Scope

T = TypeVar("T")

_MAX_DIGITS = 18  # of a page number; one of more digits is beyond every list
_MAX_SHOWN = 60  # characters of a wrong value that an error repeats
DEFAULT_PAGE_SIZE = 100  # djl-serving's default for `limit`


class ListedModel(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """One model of the list. `reason`: why it is FAILED."""

    model_name: str
    version: str | UnsetType = UNSET
    model_url: str
    status: str
    reason: str | UnsetType = UNSET


class ModelPage(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """One page of the list; `next_page_token` is there if more follow.

    `object` and `data`: those of them that answer, as OpenAI lists them; llama.cpp's clients ask this path for them.
    """

    models: list[ListedModel]
    object: str = "list"
    data: list[OpenAiModel]
    next_page_token: str | UnsetType = UNSET


class Device(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """The device of a worker group."""

    device_type: str
    device_id: int = -1


class Worker(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """One worker."""

    id: int = 1
    start_time: str  # ISO 8601
    status: str


class WorkerGroup(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """The workers on one device."""

    device: Device
    min_workers: int = 1
    max_workers: int = 1
    workers: list[Worker]


class DescribedModel(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """One model with its queue and workers, none of which it has before it is loaded. `reason`: why it is FAILED."""

    model_name: str
    version: str | UnsetType = UNSET
    model_url: str
    batch_size: int
    max_batch_delay_millis: int = 0  # requests join the running batch at once
    max_idle_seconds: int = 0
    queue_size: int
    request_in_queue: int
    status: str
    reason: str | UnsetType = UNSET
    loaded_at_startup: bool
    worker_groups: list[WorkerGroup]


class Workflow(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """The models of one name; djl-serving calls them a workflow."""

    workflow_name: str
    models: list[DescribedModel]


def lmi_models(models: Sequence[ModelFacts], query: Mapping[str, str] | None = None) -> ModelPage:
    page, following = page_of(models, query or {})
    listed = [
        ListedModel(
            model_name=facts.name,
            version=facts.version or UNSET,
            model_url=facts.url,
            status=facts.status,
            reason=facts.reason or UNSET,
        )
        for facts in page
    ]
    data = [openai_model(facts) for facts in page if facts.status == READY]
    return ModelPage(models=listed, data=data, next_page_token=following or UNSET)


def page_of(entries: Sequence[T], query: Mapping[str, str]) -> tuple[Sequence[T], str]:
    """The entries that a call asks for, and the token of the next page, "" = there is none. Raises: InvalidParameter."""
    limit = _page_number(query, "limit", default=DEFAULT_PAGE_SIZE, low=1)
    start = _page_number(query, "next_page_token", default=0, low=0)
    return entries[start : start + limit], str(start + limit) if start + limit < len(entries) else ""


def lmi_model(facts: ModelFacts) -> list[Workflow]:
    workers = [Worker(start_time=_iso_time(facts.created_s), status=facts.status)] if facts.created_s else []
    described = DescribedModel(
        model_name=facts.name,
        version=facts.version or UNSET,
        model_url=facts.url,
        batch_size=facts.batch_size,
        queue_size=facts.queue_size,
        request_in_queue=facts.num_waiting,
        status=facts.status,
        reason=facts.reason or UNSET,
        loaded_at_startup=facts.is_of_start,
        worker_groups=[WorkerGroup(device=Device(device_type=facts.device), workers=workers)],
    )
    return [Workflow(workflow_name=facts.name, models=[described])]


def _page_number(query: Mapping[str, str], name: str, *, default: int, low: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    is_number = text.isascii() and text.isdigit()
    number = int(text) if is_number and len(text) <= _MAX_DIGITS else 10**_MAX_DIGITS
    if not is_number or number < low:
        raise InvalidParameter(f"{name} must be an integer of at least {low}, got {_shown(text)}", param=name)
    return number


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")


def _iso_time(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


class Done(msgspec.Struct, frozen=True):
    """The action done, in a sentence."""

    status: str


def in_front_shape(
    answer: AnswerCall,
    kinds: tuple[type[ServerError], ...] = (InvalidRequest, EngineFailed),
    tell: Callable[[ServerError], Reply] = front_reply,
) -> AnswerCall:
    """The same operation, with errors of these kinds in the front end's form: no model was asked."""

    @wraps(answer)
    async def told(http: HttpCall, server: Server) -> Any:
        try:
            return await answer(http, server)
        except kinds as error:
            return tell(error)

    return told


async def _models(http: HttpCall, server: Server) -> ModelPage:
    return lmi_models(_all_facts(server), http.query)


async def _model(http: HttpCall, server: Server) -> list[Workflow]:
    name = http.path_params["name"]
    status = None if server.models.get(name) is not None else _status(server, name)
    if status is not None and server.models.get(status.name) is None:
        return lmi_model(facts_of_status(status))
    return lmi_model(_facts_of_served(server, server.models.find(name)))


async def _register(http: HttpCall, server: Server) -> Reply:
    call = read_registration(http)
    source, headers = call.source, _ignored(call.ignored, http, server)
    if not source.url:
        raise InvalidRequest("Parameter url is required.", param="url")
    hosting, scheduled = _hosting(server), server.shared(Scheduled)
    name = source.name or source.url
    if not call.is_synchronous:
        _check_free(server, source.name)
        scheduled.load(source, hosting.load(source))
        return json_reply(202, Done(f'Model "{name}" registration scheduled.'), headers)
    status = await server.shared(Changes.of).run(_load(hosting, source))
    scheduled.statuses.pop(status.name, None)
    return json_reply(200, Done(f'Model "{status.name}" registered.'), headers)


async def _load(hosting: ModelHosting, source: ModelSource) -> ModelStatus:
    """Load a model for a client that waits: a failure is told at once and leaves no status behind."""
    try:
        return await hosting.load(source)
    except ServerError:
        with suppress(ServerError):
            if hosting.status(source.name).state is ModelState.FAILED:
                await hosting.unload(source.name)
        raise


async def _update(http: HttpCall, server: Server) -> Reply:
    call = read_registration(http)
    hosting = _hosting(server)
    status = hosting.status(http.path_params["name"])
    if not call.source.url:
        return _scaled(status, call, http, server)
    source = replace(call.source, name=status.name, version=call.source.version or status.version)
    names = (*call.ignored, *(["model_name"] if "model_name" in call.given else []))
    headers = _ignored(names, http, server)
    if not call.is_synchronous:
        server.shared(Scheduled).replace(status.name, hosting.replace(source))
        return json_reply(202, Done(f'Model "{status.name}" replacement scheduled.'), headers)
    await server.shared(Changes.of).run(hosting.replace(source))
    return json_reply(200, Done(f'Model "{status.name}" replaced.'), headers)


def _ignored(names: Sequence[str], http: HttpCall, server: Server) -> dict[str, str]:
    """The header that names parameters without effect. Raises: InvalidParameter where these are refused."""
    if server.switches.for_call(http.headers).is_strict:
        refuse_ignored(names)
    return ignored_header(names)


def _scaled(status: ModelStatus, call: Registration, http: HttpCall, server: Server) -> Reply:
    if status.state is not ModelState.READY:
        raise Unavailable(f"Model or workflow is not ready: {status.name}")
    text = (
        f'Workflow "{status.name}" worker scaled. New Worker configuration min workers:{call.min_workers} '
        f"max workers:{call.max_workers}"
    )
    headers = _ignored([name for name in call.given if name != "synchronous"], http, server)
    return json_reply(200, Done(text), headers)


async def _unregister(http: HttpCall, server: Server) -> Done:
    name = http.path_params["name"]
    scheduled = server.shared(Scheduled)
    try:
        await server.shared(Changes.of).run(_hosting(server).unload(name))
    except NotFound:
        known = scheduled.statuses.get(name)
        if known is None:
            raise
        if known.state is ModelState.LOADING:
            raise _is_loading(name) from None
    scheduled.statuses.pop(name, None)
    return Done(f'Model or workflow "{name}" unregistered')


def _hosting(server: Server) -> ModelHosting:
    assert server.hosting is not None  # else there are no such operations
    return server.hosting


def _check_free(server: Server, name: str) -> None:
    """Raises: Conflict if there is a model of that name, which a client that does not wait would not learn otherwise."""
    status = _status(server, name)
    if status is not None and status.state is ModelState.LOADING:
        raise _is_loading(name)
    if status is not None and status.state is not ModelState.FAILED:
        raise Conflict(f"Model {name} is already loaded, from {status.url}", param="model")


def _is_loading(name: str) -> Conflict:
    return Conflict(f"Model {name} is being loaded; try again later", param="model")


def _status(server: Server, name: str) -> ModelStatus | None:
    """The status of a model, served or not; None if it is unknown, or models do not come and go."""
    if server.hosting is None:
        return None
    try:
        return server.hosting.status(name)
    except NotFound:
        return server.shared(Scheduled).statuses.get(name)


def _all_facts(server: Server) -> list[ModelFacts]:
    served = server.models.models
    facts = [_facts_of_served(server, model) for model in served]
    if server.hosting is None:
        return facts
    names = {model.name for model in served}
    others = {
        status.name: status for status in (*server.shared(Scheduled).statuses.values(), *server.hosting.statuses())
    }
    return facts + [facts_of_status(status) for name, status in others.items() if name not in names]


def _facts_of_served(server: Server, model: ServedModel) -> ModelFacts:
    return replace(facts_of(model), is_of_start=server.models.is_of_start(model))


# --- descriptions -----------------------------------------------------------------------------------------------------


def _number(low: int, default: int) -> Schema:
    return {"anyOf": [{"type": "integer", "minimum": low}, {"const": ""}], "default": default}


_EMPTY = "; an empty value counts as absent"
_WORKERS = "accepted, and named in `x-dragoman-ignored`: a model has no workers here"

_FIELDS: dict[str, tuple[str, Schema]] = {
    "url": ("a directory or archive in the model store: a path, from the store on or absolute, or file://", TEXT),
    "model_name": ("what to call it; the last part of `url` if absent", TEXT),
    "model_version": ("its version", TEXT),
    "batch_size": ("as the option of that name", INTEGER),
    "job_queue_size": ("as the option of that name", INTEGER),
    "device": ("cpu or -1; any other is named in `x-dragoman-ignored`", TEXT),
    "engine": ("accepted, and named in `x-dragoman-ignored`: the operator chooses it", TEXT),
    "max_batch_delay": (
        "accepted, and named in `x-dragoman-ignored`: requests join the running batch at once",
        INTEGER,
    ),
    "max_idle_time": (_WORKERS, INTEGER),
    "min_worker": (_WORKERS, INTEGER),
    "max_worker": (_WORKERS, INTEGER),
    "synchronous": ("false: answer at once with 202, and load while nobody waits", {**BOOLEAN, "default": True}),
}
_OTHERS = "Any `option.NAME` is an option of the model; the operator's own options are refused."


def _component(name: str) -> str:
    return f"{name}_registration"


PARAMETERS = {
    "limit_query": parameter("query", "limit", f"most models on a page{_EMPTY}", _number(1, DEFAULT_PAGE_SIZE)),
    "next_page_token_query": parameter("query", "next_page_token", f"where the page begins{_EMPTY}", _number(0, 0)),
    **{_component(name): parameter("query", name, text, schema) for name, (text, schema) in _FIELDS.items()},
}


def schemas() -> dict[str, Schema]:
    fields = {name: described(_or_text(schema), text) for name, (text, schema) in _FIELDS.items()}
    return {"ModelRegistration": an_object({}, fields, f"The query may say the same. {_OTHERS}")}


def _or_text(schema: Schema) -> Schema:
    return any_of(schema, {"type": "null"}) if schema == TEXT else any_of(schema, TEXT, {"type": "null"})


_DONE: Answers = {200: json_answer(Done, "it is done", *IGNORED)}
_SCHEDULED: Answers = {202: json_answer(Done, "it will be done; `GET /models/{name}` tells how it goes", *IGNORED)}
_WRONG: Answers = {400: json_answer(FrontError, "the call is wrong, or names no model of the operator's model store")}
_FAILED: Answers = {500: json_answer(FrontError, "the model could not be loaded for another reason; see the log")}

_operation = partial(AnswerOperation, tag="Models", scope=Scope.INFERENCE)
_changing = partial(_operation, scope=Scope.MANAGEMENT, needs_hosting=True)


def _errors(*kinds: str) -> Answers:
    return LMI_ERRORS.answers(("unauthorized", *kinds))


OPERATIONS = (
    _operation(
        method="GET",
        path="/models",
        summary="The models, as LMI lists them",
        answers=merged(
            {200: json_answer(ModelPage, "the list")},
            _errors(),
            {400: json_answer(FrontError, "`limit` or `next_page_token` is wrong")},
        ),
        parameters=("limit_query", "next_page_token_query"),
        answer=in_front_shape(_models),
    ),
    _operation(
        method="GET",
        path="/models/{name}",
        summary="One model with its queue and workers",
        answers=merged({200: json_answer(list[Workflow], "the description")}, _errors("not_found", *LOADING)),
        parameters=("name_path",),
        answer=_model,
    ),
    _changing(
        method="POST",
        path="/models",
        summary="Load a model of the operator's model store",
        description="LMI's way to register a model, with a query, and SageMaker's way to load one, with a JSON body. "
        + _OTHERS,
        answers=merged(
            _DONE,
            _SCHEDULED,
            _WRONG,
            _errors("invalid_payload", "not_found", "conflict", "too_large", "no_memory", *LOADING),
            _FAILED,
        ),
        parameters=tuple(_component(name) for name in _FIELDS),
        body={JSON_MEDIA_TYPE: ref("ModelRegistration"), FORM: ref("ModelRegistration")},
        is_body_optional=True,
        example={"model_name": "m", "url": "/opt/ml/models/m/model"},
        answer=in_front_shape(_register),
    ),
    _changing(
        method="PUT",
        path="/models/{name}",
        summary="Replace a model without a gap, or scale its workers",
        description="With `url`, that model is loaded while the old one answers; then it takes over its name, and calls in "
        "flight finish on the old one. Without `url` the call scales workers, of which there are none here: it is "
        f"accepted, and its parameters are named in `x-dragoman-ignored`. {_OTHERS}",
        answers=merged(_DONE, _SCHEDULED, _WRONG, _errors("not_found", "conflict", "no_memory", *LOADING), _FAILED),
        parameters=("name_path", *(_component(name) for name in _FIELDS if name != "model_name")),
        answer=in_front_shape(_update),
    ),
    _changing(
        method="DELETE",
        path="/models/{name}",
        summary="Unload a model",
        description="It takes no new calls, finishes those in flight, and gives its memory back before this answers.",
        answers=merged(_DONE, _WRONG, _errors("not_found", "conflict", *LOADING)),
        parameters=("name_path",),
        answer=in_front_shape(_unregister),
    ),
)
