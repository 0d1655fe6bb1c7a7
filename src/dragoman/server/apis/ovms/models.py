"""One model as the clients of OpenVINO Model Server ask for it: by KServe's v2 protocol, and by TensorFlow Serving's.

Source: KServe's Open Inference Protocol (REST); OVMS's REST APIs, KServe and TensorFlow Serving.
"""

from __future__ import annotations

from functools import partial

import msgspec

from dragoman import __version__
from dragoman.errors import EngineDead, NotFound, ServerError, Unavailable
from dragoman.server.api import HttpCall, Reply
from dragoman.server.apis.openai_wire.errors import ERRORS as OPENAI_ERRORS
from dragoman.server.apis.ovms.config import ONLY_VERSION, ModelVersions, versions_of
from dragoman.server.apis.ovms_wire.profile import ERRORS, OVMS
from dragoman.server.describe.answers import FINDING, LISTING, LOADING, REFUSING, json_answer, merged
from dragoman.server.describe.components import parameter
from dragoman.server.describe.json_schema import TEXT
from dragoman.server.model_facts import facts_called
from dragoman.server.operations import AnswerOperation, Server, not_offered
from dragoman.server.registry import ServedModel, ServerState
from dragoman.server.security.scopes import Scope

PARAMETERS = {"version_path": parameter("path", "version", "the model's version; `1` where it has none", TEXT)}


class KserveServer(msgspec.Struct, frozen=True):
    """The server. `extensions` of the protocol: none."""

    name: str
    version: str
    extensions: list[str]


class KserveReady(msgspec.Struct, frozen=True):
    """The answer for a model that is ready; for another one, the answer is an error."""

    name: str
    ready: bool


class KserveTensor(msgspec.Struct, frozen=True):
    """A tensor that a model takes or gives."""

    name: str
    datatype: str
    shape: list[int]


class KserveModel(msgspec.Struct, frozen=True):
    """A model. It has no `inputs` and `outputs`, which are tensors: texts are asked of `/v3`."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[KserveTensor]
    outputs: list[KserveTensor]


async def _server(http: HttpCall, server: Server) -> KserveServer:
    return KserveServer("dragoman", __version__, [])


async def _ready(http: HttpCall, server: Server) -> KserveReady:
    """Raises: NotFound; Unavailable, EngineDead while it would not answer."""
    model = _model_of(http, server)
    if server.models.state is ServerState.DRAINING:
        raise Unavailable("The server is shutting down")
    health = model.engine.health()
    if health.is_recovering:
        raise Unavailable(f"The engine of model {model.name} is restarting; try again later", retry_after_s=5)
    if not health.is_alive:
        raise EngineDead(f"The engine of model {model.name} has stopped")
    return KserveReady(_name_of(model, http), ready=True)


async def _metadata(http: HttpCall, server: Server) -> KserveModel:
    model = _model_of(http, server)
    return KserveModel(_name_of(model, http), [model.version or ONLY_VERSION], "OpenVINO", [], [])


async def _status(http: HttpCall, server: Server) -> ModelVersions | Reply:
    """Its errors are OVMS's, though OpenAI's API owns the paths around it."""
    try:
        versions = versions_of(server, http.path_params["name"])
        _check_version(http, versions.model_version_status[0].version)
    except ServerError as error:
        return OVMS.reply(error)
    return versions


def _model_of(http: HttpCall, server: Server) -> ServedModel:
    """Raises: NotFound, also if it is there in another version; Unavailable, EngineDead."""
    model = server.models.find(http.path_params["name"])
    _check_version(http, model.version or ONLY_VERSION)
    return model


def _check_version(http: HttpCall, version: str) -> None:
    asked = http.path_params.get("version", version)
    if asked != version:
        name = http.path_params["name"]
        raise NotFound(f"Model or workflow not found: {name} version {asked} (served: version {version})")


def _name_of(model: ServedModel, http: HttpCall) -> str:
    """The model's own name, or that of the adapter that was asked for."""
    return facts_called(model, http.path_params["name"]).name


_operation = partial(AnswerOperation, method="GET", tag="Models", scope=Scope.INFERENCE)
_BY_NAME, _BY_VERSION = ("name_path",), ("name_path", "version_path")
_PATHS = (("/v2/models/{name}", _BY_NAME), ("/v2/models/{name}/versions/{version}", _BY_VERSION))

OPERATIONS = (
    _operation(
        path="/v2",
        summary="The server, as KServe's clients ask for it",
        answers=ERRORS.beside(json_answer(KserveServer), LISTING),
        answer=_server,
    ),
    *(
        _operation(
            path=f"{path}/ready",
            summary="Whether a model is ready, as KServe's clients ask for it",
            answers=ERRORS.beside(json_answer(KserveReady, "it is"), FINDING),
            parameters=parameters,
            answer=_ready,
        )
        for path, parameters in _PATHS
    ),
    *(
        _operation(
            path=path,
            summary="A model, as KServe's clients ask for it",
            answers=ERRORS.beside(json_answer(KserveModel), FINDING),
            parameters=parameters,
            answer=_metadata,
        )
        for path, parameters in _PATHS
    ),
    *(
        not_offered(
            "infer is not offered: models here take text, not tensors; POST /v3/chat/completions",
            path=f"{path}/infer",
            tag="Models",
            summary="Not offered: models take texts, no tensors",
            answers=ERRORS.answers(REFUSING),
            parameters=parameters,
        )
        for path, parameters in _PATHS
    ),
    _operation(
        path="/v1/models/{name}/versions/{version}",
        summary="The state of a model's version, as TensorFlow Serving's clients ask for it",
        answers=merged(
            {200: json_answer(ModelVersions)},
            ERRORS.answers(("not_found", *LOADING)),
            OPENAI_ERRORS.answers(FINDING),  # of the API that owns the paths around it
        ),
        parameters=_BY_VERSION,
        answer=_status,
    ),
)
