"""The bodies of GET /models and /models/{name}. Source: djl-serving's management API, as its own test client reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import InvalidParameter
from dragoman.server.apis.openai_wire.routes import OpenAiModel, openai_model
from dragoman.server.model_facts import READY, ModelFacts

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
