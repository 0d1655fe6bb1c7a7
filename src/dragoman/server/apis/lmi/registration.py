"""Registrations of models: reads the calls that load or replace one, and remembers those that no client waits for.

LMI's parameters are in the query, or a JSON body or form has the same names. Used by LMI's operations on models, on the
event loop. Sources: djl-serving's management API; SageMaker's contract for containers of multi-model endpoints (the JSON
body).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from dragoman.errors import InvalidRequest, ServerError
from dragoman.server.api import HttpCall
from dragoman.server.apis.lmi_wire.body import FORM, form_fields, read_boolean, show
from dragoman.server.hosting import Changes, ModelSource, ModelState, ModelStatus
from dragoman.server.json_body import NotJson, decode_json
from dragoman.server.operations import Server

URL, NAME, VERSION = "url", "model_name", "model_version"
SYNCHRONOUS = "synchronous"
DEVICE = "device"
MIN_WORKERS, MAX_WORKERS = "min_worker", "max_worker"

OPTIONS = ("batch_size", "job_queue_size")
"""Parameters that are options of the model."""

COUNTS_WITHOUT_EFFECT = (MIN_WORKERS, MAX_WORKERS, "max_batch_delay", "max_idle_time")
"""Integers about workers and windows, of which there are none here."""

OPTION_PREFIX = "option."

_CPU = ("cpu", "-1")
_ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")  # of which a model's name has none


@dataclass(frozen=True, slots=True)
class Registration:
    """`source.url` "" = no other model. Workers: -1 = not given. `given`: all names; `ignored`: those without effect."""

    source: ModelSource
    is_synchronous: bool
    min_workers: int
    max_workers: int
    given: tuple[str, ...]
    ignored: tuple[str, ...]


def read_registration(http: HttpCall) -> Registration:
    """The query goes before the body. Raises: InvalidRequest naming the parameter."""
    fields = {**_body_fields(http), **{name: text for name, text in http.query.items() if text}}
    counts = {name: _count(name, fields[name]) for name in COUNTS_WITHOUT_EFFECT if name in fields}
    options = {name: text for name, text in fields.items() if _is_option(name)}
    url = fields.get(URL, "")
    source = ModelSource(url, fields.get(NAME) or name_of(url), fields.get(VERSION, ""), options)
    return Registration(
        source=source,
        is_synchronous=_is_synchronous(fields),
        min_workers=counts.get(MIN_WORKERS, -1),
        max_workers=counts.get(MAX_WORKERS, -1),
        given=tuple(fields),
        ignored=tuple(name for name, text in fields.items() if not _has_effect(name, text)),
    )


def name_of(url: str) -> str:
    """LMI's name for a model of which only the URL is known: the last part of the path; "" if that is not a name."""
    path = unquote(urlsplit(url).path) if "://" in url else url
    name = PurePosixPath(path).name
    suffix = next((suffix for suffix in _ARCHIVES if name.lower().endswith(suffix)), "")
    return "" if name == ".." else name.removesuffix(name[len(name) - len(suffix) :])


def _has_effect(name: str, text: str) -> bool:
    if name == DEVICE:
        return text.lower() in _CPU
    return name in (URL, NAME, VERSION, SYNCHRONOUS) or _is_option(name)


def _is_option(name: str) -> bool:
    return name in OPTIONS or name.startswith(OPTION_PREFIX)


def _count(name: str, text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise InvalidRequest(f"Parameter {name} must be an integer, got {show(text)}", param=name)
    return int(text)


def _is_synchronous(fields: Mapping[str, str]) -> bool:
    text = fields.get(SYNCHRONOUS, "true")
    try:
        return read_boolean(text)
    except ValueError as error:
        raise InvalidRequest(
            f"Parameter {SYNCHRONOUS} must be true or false, got {show(text)}", param=SYNCHRONOUS
        ) from error


def _body_fields(http: HttpCall) -> dict[str, str]:
    if not http.body.strip():
        return {}
    match http.media_type:
        case "" | "application/json":
            return _json_fields(http.body)
        case media_type if media_type == FORM and http.body.lstrip().startswith(b"{"):
            return _json_fields(http.body)  # `curl -d` with JSON and no header says it is a form
        case media_type if media_type == FORM:
            return dict(form_fields(http.body, keep_blank_values=False))
        case media_type:
            raise InvalidRequest(
                f"Content type '{media_type}' is not supported: send application/json, {FORM} or no body",
                param="content-type",
            )


def _json_fields(body: bytes) -> dict[str, str]:
    try:
        value = decode_json(body)
    except NotJson as error:
        raise InvalidRequest(error.of("The body")) from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"The body must be a JSON object with the field '{URL}', got {show(value)}", param=URL)
    return {name: text for name, entry in value.items() if (text := _text(name, entry))}


def _text(name: str, value: Any) -> str:
    """A field as the query would have it; null counts as absent."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case str() | int() | float():
            return str(value)
    raise InvalidRequest(f"Parameter {name} must be a text, a number or a boolean, got {show(value)}", param=name)


MAX_REMEMBERED = 100  # failures; the oldest are forgotten

logger = logging.getLogger("dragoman.host")


class Scheduled:
    def __init__(self, server: Server) -> None:
        self._changes = server.shared(Changes.of)
        self.statuses: dict[str, ModelStatus] = {}  # by name, in the order in which they were asked for

    def load(self, source: ModelSource, load: Coroutine[Any, Any, ModelStatus]) -> None:
        self._forget_oldest()
        status = ModelStatus(source.name, ModelState.LOADING, source.url, version=source.version)
        self.statuses[source.name] = status
        self._changes.start(_logged(source.name, load)).add_done_callback(partial(self._end, status))

    def replace(self, name: str, change: Coroutine[Any, Any, ModelStatus]) -> None:
        """Have `change` done; if it fails, the log tells, and the model that was there stays."""
        self._changes.start(_logged(name, change))

    def _end(self, status: ModelStatus, load: asyncio.Task[ModelStatus]) -> None:
        if self.statuses.get(status.name) is not status:
            return
        del self.statuses[status.name]
        error = None if load.cancelled() else load.exception()
        if isinstance(error, ServerError):
            self.statuses[status.name] = replace(status, state=ModelState.FAILED, reason=error.message)

    def _forget_oldest(self) -> None:
        failed = [status.name for status in self.statuses.values() if status.state is ModelState.FAILED]
        for name in failed[: max(0, len(failed) - MAX_REMEMBERED + 1)]:
            del self.statuses[name]


async def _logged(name: str, change: Coroutine[Any, Any, ModelStatus]) -> ModelStatus:
    try:
        return await change
    except ServerError as error:
        logger.error("model %s: %s", name, error.message)
        raise
    except Exception:  # task boundary: nobody waits for it
        logger.exception("model %s was not loaded", name)
        raise
