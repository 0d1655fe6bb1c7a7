"""Health checks: readiness and liveness, in the words of LMI's front end, which all of them share.

Does: derive the status from the registry and the engines' health. Does not: touch engines beyond asking for it.
Called on the event loop; never waits, so that health checks answer however busy the models are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from dragoman.server.api import HttpCall, Reply
from dragoman.server.http.replies import json_reply
from dragoman.server.operations import Server
from dragoman.server.registry import ModelRegistry, ServerState


class ModelStatus(msgspec.Struct, frozen=True):
    """The status of one model."""

    status: Literal["Healthy", "Unhealthy", "PENDING", "FAILED"]


Statuses = Mapping[str, ModelStatus]
"""A status per model."""


class Liveness(msgspec.Struct, frozen=True):
    """Whether only a restart helps."""

    status: Literal["Healthy", "Unhealthy"]


async def ping(http: HttpCall, server: Server) -> Reply:
    """Readiness: 200, 503 while loading or draining, 500 when an engine is dead."""
    return json_reply(*readiness(server.models))


async def live(http: HttpCall, server: Server) -> Reply:
    """Liveness: 200 as long as a restart would not help; loading and draining are alive, a dead engine is not."""
    is_dead = _is_dead(server.models)
    return json_reply(500 if is_dead else 200, Liveness("Unhealthy" if is_dead else "Healthy"))


def readiness(models: ModelRegistry) -> tuple[int, Statuses]:
    """The status of the health checks, and each model's."""
    if _is_dead(models):
        return 500, _statuses(models)
    return 200 if models.state is ServerState.READY else 503, _statuses(models)


def _is_dead(models: ModelRegistry) -> bool:
    """True if no request can ever be served again; the engines that a drain stopped are not dead, they are done."""
    if models.state in (ServerState.FAILED, ServerState.DRAINING):
        return models.state is ServerState.FAILED
    return any(not model.engine.health().is_alive for model in models.models)


def _statuses(models: ModelRegistry) -> Statuses:
    """Each model's status; models that still load are PENDING, and all are unhealthy during a drain."""
    is_draining = models.state is ServerState.DRAINING
    statuses: dict[str, ModelStatus] = {}
    for model in models.models:
        if is_draining:
            statuses[model.name] = ModelStatus("Unhealthy")
        else:
            statuses[model.name] = ModelStatus("Healthy" if model.engine.health().is_alive else "FAILED")
    waiting = ModelStatus("FAILED" if models.state is ServerState.FAILED else "PENDING")
    statuses.update(dict.fromkeys(models.expected_names, waiting))
    return statuses
