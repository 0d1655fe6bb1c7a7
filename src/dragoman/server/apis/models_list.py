"""The lists of served models, in OpenAI's and in LMI's shapes, from plain facts about each model.

Does: build the bodies of GET /v1/models, /v3/models, /models and of their /{name} forms.
Does not: know which models are loaded; the application hands the facts over. Called on the event loop.
Sources: OpenAI API reference, models; djl-serving's management API, as its own test client reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from dragoman.errors import InvalidParameter, NotFound
from dragoman.server.api import Reply
from dragoman.server.apis.openai_wire.common import PLACEHOLDER_MODELS, peek_model
from dragoman.server.apis.openai_wire.fields import shown
from dragoman.server.framing import JSON_MEDIA_TYPE

__all__ = ["ModelFacts", "lmi_model", "lmi_models", "openai_model", "openai_models", "peek_model"]

_MAX_DIGITS = 18  # of a page number; one of more digits is beyond every list
DEFAULT_PAGE_SIZE = 100  # djl-serving's default for `limit`


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the lists tell about one served model. `created_s`: Unix time at which it was loaded."""

    name: str
    created_s: int
    url: str = ""
    status: str = "READY"
    version: str | None = None
    device: str = "cpu"
    max_model_len: int | None = None
    batch_size: int = 1  # sequences that run together at most
    queue_size: int = 0  # requests that may wait
    num_waiting: int = 0


def openai_models(models: Sequence[ModelFacts], *, owned_by: str = "dragoman") -> Reply:
    """GET /v1/models and /v3/models (where `owned_by` is "OVMS", as that server says)."""
    return _reply({"object": "list", "data": [_openai_object(facts, owned_by) for facts in models]})


def openai_model(models: Sequence[ModelFacts], name: str, *, owned_by: str = "dragoman") -> Reply:
    """GET /v1/models/{name} and /v3/models/{name}. Raises: NotFound."""
    return _reply(_openai_object(_find(models, name), owned_by))


def lmi_models(models: Sequence[ModelFacts], query: Mapping[str, str] | None = None) -> Reply:
    """GET /models, one page of it: `limit` models from `next_page_token` on. Raises: InvalidParameter."""
    limit = _page_number(query or {}, "limit", default=DEFAULT_PAGE_SIZE, low=1)
    start = _page_number(query or {}, "next_page_token", default=0, low=0)
    page: dict[str, Any] = {"models": [_lmi_entry(facts) for facts in models[start : start + limit]]}
    if start + limit < len(models):
        page["nextPageToken"] = str(start + limit)
    return _reply(page)


def lmi_model(models: Sequence[ModelFacts], name: str) -> Reply:
    """GET /models/{name}: the description of one model, in a list as djl-serving gives it. Raises: NotFound."""
    facts = _find(models, name)
    worker = {"id": 1, "startTime": _iso_time(facts.created_s), "status": facts.status}
    group = {
        "device": {"deviceType": facts.device, "deviceId": -1},
        "minWorkers": 1,
        "maxWorkers": 1,
        "workers": [worker],
    }
    description = {
        "modelName": facts.name,
        **({} if facts.version is None else {"version": facts.version}),
        "modelUrl": facts.url,
        "batchSize": facts.batch_size,
        "maxBatchDelayMillis": 0,  # requests join the running batch at once
        "maxIdleSeconds": 0,
        "queueSize": facts.queue_size,
        "requestInQueue": facts.num_waiting,
        "status": facts.status,
        "loadedAtStartup": True,
        "workerGroups": [group],
    }
    return _reply([{"workflowName": facts.name, "models": [description]}])


def _openai_object(facts: ModelFacts, owned_by: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": facts.name, "object": "model", "created": facts.created_s, "owned_by": owned_by}
    if facts.max_model_len is not None:
        entry["max_model_len"] = facts.max_model_len
    return entry


def _lmi_entry(facts: ModelFacts) -> dict[str, Any]:
    version = {} if facts.version is None else {"version": facts.version}
    return {"modelName": facts.name, **version, "modelUrl": facts.url, "status": facts.status}


def _find(models: Sequence[ModelFacts], name: str) -> ModelFacts:
    for facts in models:
        if facts.name == name:
            return facts
    if models and name in PLACEHOLDER_MODELS:
        return models[0]
    served = ", ".join(facts.name for facts in models) or "none"
    raise NotFound(f"Model or workflow not found: {name} (served: {served})", param="model")


def _page_number(query: Mapping[str, str], name: str, *, default: int, low: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    is_number = text.isascii() and text.isdigit()
    number = int(text) if is_number and len(text) <= _MAX_DIGITS else 10**_MAX_DIGITS
    if not is_number or number < low:
        raise InvalidParameter(f"{name} must be an integer of at least {low}, got {shown(text)}", param=name)
    return number


def _iso_time(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _reply(value: object) -> Reply:
    return Reply(200, msgspec.json.encode(value), JSON_MEDIA_TYPE)
