"""OpenVINO Model Server's configuration operations: the status of all models, and reloading what the model store holds.

The store stands for its config file. Source: OVMS's REST API, Config Status and Config Reload.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

import msgspec

from dragoman.errors import NotFound
from dragoman.server.api import HttpCall, Reply, json_reply
from dragoman.server.apis.ovms_wire.profile import ERRORS, OvmsError
from dragoman.server.changes import Changes
from dragoman.server.describe.answers import LISTING, json_answer, merged
from dragoman.server.hosting import ModelState, ModelStatus, SyncResult
from dragoman.server.operations import AnswerOperation, Server
from dragoman.server.registry import ServerState
from dragoman.server.security.scopes import Scope

State = Literal["LOADING", "AVAILABLE", "UNLOADING"]

_STATES: Mapping[ModelState, State] = {
    ModelState.LOADING: "LOADING",
    ModelState.READY: "AVAILABLE",
    ModelState.UNLOADING: "UNLOADING",
    ModelState.FAILED: "LOADING",  # where OVMS leaves a version that it could not load, with the error beside
}
ONLY_VERSION = "1"  # of a model whose configuration names none


class VersionError(msgspec.Struct, frozen=True):
    """The error of a version of a model; OK if there is none."""

    error_code: Literal["OK", "UNKNOWN"] = "OK"
    error_message: str = "OK"


class VersionStatus(msgspec.Struct, frozen=True):
    """One version of a model."""

    version: str
    state: State
    status: VersionError = VersionError()


class ModelVersions(msgspec.Struct, frozen=True):
    """The versions of one model."""

    model_version_status: list[VersionStatus]


Statuses = dict[str, ModelVersions]


async def _config(http: HttpCall, server: Server) -> Statuses:
    return statuses(server)


async def _reload(http: HttpCall, server: Server) -> Reply:
    assert server.hosting is not None  # else there is no such operation
    try:
        sources = server.hosting.stored()
    except OSError as error:
        return json_reply(500, {"error": f"Config file not found or cannot open. {error}"})
    if not sources:  # a store that is not mounted must not end all models; OVMS without a file answers the same
        return json_reply(200, statuses(server))
    result = await server.shared(Changes.of).run(server.hosting.sync(sources))
    if result.failures:
        return json_reply(500, OvmsError(_failures(result)))
    has_changed = bool(result.loaded or result.replaced or result.unloaded)
    return json_reply(201 if has_changed else 200, statuses(server))


def statuses(server: Server) -> Statuses:
    if server.hosting is None:
        return {model.name: _of(ModelState.READY, model.version) for model in server.models.models}
    return {status.name: _of_status(status) for status in server.hosting.statuses()}


def versions_of(server: Server, name: str) -> ModelVersions:
    """The versions of the model of that name or alias, also while it loads. Raises: NotFound, Unavailable, EngineDead."""
    if server.hosting is not None:
        try:
            return _of_status(server.hosting.status(name))
        except NotFound:
            pass  # it may be a name of the default model, or an adapter's
    elif name in server.models.expected_names and server.models.state is not ServerState.FAILED:
        return _of(ModelState.LOADING, "")
    return _of(ModelState.READY, server.models.find(name).version)


def _of_status(status: ModelStatus) -> ModelVersions:
    return _of(status.state, status.version, status.reason)


def _of(state: ModelState, version: str, reason: str = "") -> ModelVersions:
    error = VersionError("UNKNOWN", reason) if state is ModelState.FAILED else VersionError()
    return ModelVersions([VersionStatus(version or ONLY_VERSION, _STATES[state], error)])


def _failures(result: SyncResult) -> str:
    """OVMS's words, and what failed, which is as it was before; the rest was done."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in result.failures.items())
    return f"Reloading models versions failed. Check server logs for more info. {reasons}"


_operation = partial(AnswerOperation, tag="Models", scope=Scope.INFERENCE)

OPERATIONS = (
    _operation(
        method="GET",
        path="/v1/config",
        summary="The status of all models, as OpenVINO Model Server tells it",
        answers=ERRORS.beside(json_answer(Statuses, "the models by name"), LISTING),
        answer=_config,
    ),
    _operation(
        method="POST",
        path="/v1/config/reload",
        summary="Serve what the model store holds now",
        description="Models that are gone from the store are unloaded, those whose files or options changed are replaced "
        "without a gap, new ones are loaded. An empty store changes nothing. A model that cannot be loaded does not keep "
        "the others from it.",
        answers=merged(
            {200: json_answer(Statuses, "nothing had changed"), 201: json_answer(Statuses, "something had changed")},
            ERRORS.answers(
                ("invalid_request", "unauthorized", "conflict", "no_memory", "unavailable", "engine_failed")
            ),
        ),
        scope=Scope.MANAGEMENT,
        needs_hosting=True,
        answer=_reload,
    ),
)
