"""Health checks: readiness and liveness, in the words of LMI's front end.

On the event loop; never waits, so that health checks answer however busy the models are.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from dragoman.server.api import HttpCall, Reply, json_reply
from dragoman.server.operations import Server
from dragoman.server.registry import ModelRegistry, ServedModel, ServerState


class ModelStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The status of one model, and while it is loaded how far that is: see `LoadProgress`. `seconds`: since it began."""

    status: Literal["Healthy", "Unhealthy", "PENDING", "FAILED"]
    stage: str | UnsetType = UNSET
    fraction: float | UnsetType = UNSET
    bytes_read: int | UnsetType = UNSET
    bytes_total: int | UnsetType = UNSET
    seconds: float | UnsetType = UNSET


_WORDS = {200: "ok", 500: "error", 503: "loading model"}

Statuses = Mapping[str, ModelStatus]


class Readiness(msgspec.Struct, frozen=True):
    """Readiness, as KServe's clients read it. `ready`: every model takes requests."""

    ready: bool
    models: Statuses


class Liveness(msgspec.Struct, frozen=True):
    """Unhealthy if only a restart helps; KServe's clients read `live`."""

    status: Literal["Healthy", "Unhealthy"]
    live: bool


async def ping(http: HttpCall, server: Server) -> Reply:
    """Readiness: 200, 503 while loading or draining, 500 when an engine is dead."""
    return json_reply(*readiness(server.models))


async def health(http: HttpCall, server: Server) -> Reply:
    """The same, with a word on the server as a whole that llama.cpp's clients look for."""
    status, statuses = readiness(server.models)
    return json_reply(status, {"status": _WORDS[status], **statuses})


async def ready(http: HttpCall, server: Server) -> Reply:
    """The same in KServe's words."""
    status, statuses = readiness(server.models)
    return json_reply(status, Readiness(status == 200, statuses))


async def live(http: HttpCall, server: Server) -> Reply:
    """200 as long as a restart would not help: loading, draining and a dead engine that is renewed are alive."""
    is_dead = _is_dead(server.models, for_good=True)
    return json_reply(500 if is_dead else 200, Liveness("Unhealthy" if is_dead else "Healthy", not is_dead))


def readiness(models: ModelRegistry) -> tuple[int, Statuses]:
    if _is_dead(models):
        return 500, _statuses(models)
    return 200 if models.state is ServerState.READY else 503, _statuses(models)


def _is_dead(models: ModelRegistry, *, for_good: bool = False) -> bool:
    """True if an engine takes no requests, or (`for_good`) never will again. What a drain stopped is done, not dead."""
    if models.state in (ServerState.FAILED, ServerState.DRAINING):
        return models.state is ServerState.FAILED
    healths = [model.engine.health() for model in models.models]
    return any(not one.is_alive and not (for_good and one.is_recovering) for one in healths)


def _statuses(models: ModelRegistry) -> Statuses:
    statuses = {model.name: _status(models, model) for model in models.models}
    is_failed = models.state is ServerState.FAILED
    for name in models.expected_names:
        statuses[name] = ModelStatus("FAILED") if is_failed else _pending(models, name)
    return statuses


def _status(models: ModelRegistry, model: ServedModel) -> ModelStatus:
    if models.state is ServerState.DRAINING:
        return ModelStatus("Unhealthy")
    health = model.engine.health()
    if health.is_alive:
        return ModelStatus("Healthy")
    return _pending(models, model.name) if health.is_recovering else ModelStatus("FAILED")


def _pending(models: ModelRegistry, name: str) -> ModelStatus:
    progress = models.progress_of(name)
    if progress is None:
        return ModelStatus("PENDING")
    status = ModelStatus(
        "PENDING",
        progress.stage,
        round(progress.fraction, 3),
        seconds=round(time.monotonic() - progress.begin_s, 1),
    )
    if not progress.bytes_total:
        return status
    return replace(status, bytes_read=progress.bytes_read, bytes_total=progress.bytes_total)
