"""OpenVINO Model Server's API: OpenAI's wire format below `/v3`, its tokens, and models by other protocols.

The model store stands for its config file. The model's service tokenises, long texts on its threads.
Sources: OVMS's REST APIs: Config Status, Config Reload, KServe, TensorFlow Serving, tokenize endpoint; KServe's Open
Inference Protocol (REST).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import msgspec

from dragoman import __version__
from dragoman.errors import EngineDead, NotFound, ServerError, Unavailable
from dragoman.parameters import Bounds
from dragoman.server.api import JSON_MEDIA_TYPE, HttpCall, ModelProfile, Reply, json_reply
from dragoman.server.apis.openai_wire.errors import ERRORS as OPENAI_ERRORS
from dragoman.server.apis.openai_wire.fields import (
    check_count,
    check_number,
    decode_object,
    read_struct,
    shown,
    unknown_names,
)
from dragoman.server.apis.openai_wire.routes import OpenAiRoutes
from dragoman.server.apis.ovms_wire import ERRORS, V3, V3_CHAT, V3_EMBEDDINGS, OvmsError
from dragoman.server.descriptions import (
    BOOLEAN,
    COUNTING,
    FINDING,
    IGNORED,
    LISTING,
    LOADING,
    QUESTION,
    REFUSING,
    TEXT,
    Schema,
    an_object,
    any_of,
    array,
    json_answer,
    merged,
    nullable,
    parameter,
    ref,
)
from dragoman.server.generation.tokenizing_service import TokenizingService, tokenizing_service
from dragoman.server.hosting import Changes, ModelState, ModelStatus, SyncResult
from dragoman.server.model_facts import facts_called
from dragoman.server.operations import AnswerOperation, Api, Server, not_offered
from dragoman.server.registry import ServedModel, ServerState
from dragoman.server.responder import note_ignored
from dragoman.server.security.callers import Scope
from dragoman.tokenizer.base import Tokenizer
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.types import Limits, TextPrompt

State = Literal["LOADING", "AVAILABLE", "UNLOADING"]

_STATES: Mapping[ModelState, State] = {
    ModelState.LOADING: "LOADING",
    ModelState.READY: "AVAILABLE",
    ModelState.UNLOADING: "UNLOADING",
    ModelState.FAILED: "LOADING",  # where OVMS leaves a version that it could not load, with the error beside
}
_ONLY_VERSION = "1"  # of a model whose configuration names none


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
    return _statuses(server)


async def _reload(http: HttpCall, server: Server) -> Reply:
    assert server.hosting is not None  # else there is no such operation
    try:
        sources = server.hosting.stored()
    except OSError as error:
        return json_reply(500, OvmsError(f"Config file not found or cannot open. {error}"))
    if not sources:  # a store that is not mounted must not end all models; OVMS without a file answers the same
        return json_reply(200, _statuses(server))
    result = await server.shared(Changes.of).run(server.hosting.sync(sources))
    if result.failures:
        return json_reply(500, OvmsError(_failures(result)))
    has_changed = bool(result.loaded or result.replaced or result.unloaded)
    return json_reply(201 if has_changed else 200, _statuses(server))


def _statuses(server: Server) -> Statuses:
    if server.hosting is None:
        return {model.name: _of(ModelState.READY, model.version) for model in server.models.models}
    return {status.name: _of_status(status) for status in server.hosting.statuses()}


def _versions_of(server: Server, name: str) -> ModelVersions:
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
    return ModelVersions([VersionStatus(version or _ONLY_VERSION, _STATES[state], error)])


def _failures(result: SyncResult) -> str:
    """OVMS's words, and what failed, which is as it was before; the rest was done."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in result.failures.items())
    return f"Reloading models versions failed. Check server logs for more info. {reasons}"


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
    return KserveModel(_name_of(model, http), [model.version or _ONLY_VERSION], "OpenVINO", [], [])


async def _status(http: HttpCall, server: Server) -> ModelVersions | Reply:
    """Its errors are OVMS's, though OpenAI's API owns the paths around it."""
    try:
        versions = _versions_of(server, http.path_params["name"])
        _check_version(http, versions.model_version_status[0].version)
    except ServerError as error:
        return ERRORS.reply(error)
    return versions


def _model_of(http: HttpCall, server: Server) -> ServedModel:
    """Raises: NotFound, also if it is there in another version; Unavailable, EngineDead."""
    model = server.models.find(http.path_params["name"])
    _check_version(http, model.version or _ONLY_VERSION)
    return model


def _check_version(http: HttpCall, version: str) -> None:
    wanted = http.path_params.get("version", version)
    if wanted != version:
        name = http.path_params["name"]
        raise NotFound(f"Model or workflow not found: {name} version {wanted} (served: version {version})")


def _name_of(model: ServedModel, http: HttpCall) -> str:
    """The model's own name, or that of the adapter that was asked for."""
    return facts_called(model, http.path_params["name"]).name


_operation = partial(AnswerOperation, method="GET", tag="Models", scope=Scope.INFERENCE)
_BY_NAME, _BY_VERSION = ("name_path",), ("name_path", "version_path")
_PATHS = (("/v2/models/{name}", _BY_NAME), ("/v2/models/{name}/versions/{version}", _BY_VERSION))

_MODEL_OPERATIONS = (
    _operation(
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


_LIMITS = Limits()


class OvmsTokenizeBody(msgspec.Struct, kw_only=True):
    """The body of POST /v3/tokenize. `max_length` cuts; with `pad_to_max_length` shorter texts are filled up to it."""

    text: str | list[str] | None = None
    model: str | None = None
    add_special_tokens: bool = True
    max_length: int | None = None
    pad_to_max_length: bool = False
    padding_side: str = "right"


class TokenizedV3(msgspec.Struct, frozen=True):
    """The answer: the tokens of one text, or of each of several."""

    tokens: Sequence[int | list[int]]


async def _tokenize(http: HttpCall, server: Server) -> Reply:
    raw = decode_object(http, V3)
    body = read_struct(raw, OvmsTokenizeBody, V3)
    if not body.model:
        raise V3.payload_fault("model", "model field is missing in JSON body", param="model")
    service = tokenizing_service(server.models.find(body.model))
    _check(body, service.max_model_len)
    headers = note_ignored(server.switches.for_call(http.headers), unknown_names(raw, OvmsTokenizeBody))
    if isinstance(body.text, str):
        tokens: Sequence[int | list[int]] = await _tokens(service, body.text, body)
    else:
        tokens = [await _tokens(service, text, body) for text in body.text or []]
    return json_reply(200, TokenizedV3(tokens), headers)


def _check(body: OvmsTokenizeBody, max_model_len: int) -> None:
    if body.text is None:
        raise V3.fault("text", "missing", "text is missing: it must be a string or an array of strings")
    num_texts = len(body.text) if isinstance(body.text, list) else 1
    check_count("text", num_texts, _LIMITS.max_prompts, V3)
    num_chars = sum(map(len, body.text)) if isinstance(body.text, list) else len(body.text)
    if num_chars > _LIMITS.max_text_chars:
        message = f"text must have at most {_LIMITS.max_text_chars} characters in all, got {num_chars}"
        raise V3.fault("text", "high", message)
    if body.max_length is not None:
        # Padding allocates what is asked for, and no model here takes more.
        check_number("max_length", body.max_length, Bounds(1, max_model_len if body.pad_to_max_length else None), V3)
    num_padded = num_texts * (body.max_length or 0) if body.pad_to_max_length else 0
    if num_padded > _LIMITS.max_text_chars:
        message = (
            f"text and max_length ask for {num_padded} tokens, at most {_LIMITS.max_text_chars} are padded in a call"
        )
        raise V3.fault("max_length", "high", message)
    if body.pad_to_max_length and body.max_length is None:
        raise V3.fault("pad_to_max_length", "alone", "pad_to_max_length needs max_length, which is missing")
    if body.padding_side not in ("left", "right"):
        message = f"padding_side must be left or right, got {shown(body.padding_side)}"
        raise V3.fault("padding_side", "value", message)


async def _tokens(service: TokenizingService, text: str, body: OvmsTokenizeBody) -> list[int]:
    """The tokens of one text, cut and padded as asked; none for an empty text that gets no special tokens."""
    if not text and not body.add_special_tokens:
        token_ids: list[int] = []
    else:
        token_ids = list(
            (await service.tokenize(TextPrompt(text, add_special_tokens=body.add_special_tokens))).token_ids
        )
    if body.max_length is None:
        return token_ids
    token_ids = token_ids[: body.max_length]
    if not body.pad_to_max_length:
        return token_ids
    padding = [_pad_id(service.tokenizer)] * (body.max_length - len(token_ids))
    return padding + token_ids if body.padding_side == "left" else token_ids + padding


def _pad_id(tokenizer: Tokenizer) -> int:
    if isinstance(tokenizer, HfTokenizer):
        named = tokenizer.facts.special_tokens.get("pad_token")
        token_id = None if named is None else tokenizer.token_to_id(named)
        if token_id is not None:
            return token_id
    return 0 if tokenizer.eos_token_id is None else tokenizer.eos_token_id


def _tokenize_schema() -> Schema:
    strict = nullable(BOOLEAN)
    return an_object(
        {"model": TEXT, "text": any_of(TEXT, array(TEXT, maxItems=_LIMITS.max_prompts))},
        {
            "add_special_tokens": strict,
            "max_length": nullable(
                {
                    "type": "integer",
                    "minimum": 1,
                    "description": "cuts; with `pad_to_max_length` at most the context",
                }
            ),
            "pad_to_max_length": strict,
            "padding_side": nullable({"enum": ["left", "right"]}),
        },
    )


_ROUTES = OpenAiRoutes(
    name="ovms",
    version="v3",
    chat_profile=V3_CHAT,
    completions_profile=V3,
    embeddings_profile=V3_EMBEDDINGS,
    errors=ERRORS,
    error=OvmsError,
    owned_by="OVMS",
    server="OpenVINO Model Server",
    manner="with OpenVINO Model Server's defaults",
)


def _schemas(profile: ModelProfile) -> dict[str, Schema]:
    return {**_ROUTES.schemas(profile, {}), "TokenizeRequestV3": _tokenize_schema()}


API = Api(
    name="ovms",
    title="OpenVINO",
    owns=("/v3", "/v2", "/v1/config"),
    set_up=_ROUTES.dialects,
    teller=lambda dialects: dialects[_ROUTES.completions],
    schemas=_schemas,
    operations=(
        *_ROUTES.operations(),
        AnswerOperation(
            path="/v3/tokenize",
            tag="Tokens",
            summary="The tokens of texts, as OpenVINO Model Server tells them",
            answers=ERRORS.beside(json_answer(TokenizedV3, "the tokens", *IGNORED), COUNTING),
            body={JSON_MEDIA_TYPE: ref("TokenizeRequestV3")},
            example={"model": "default", "text": QUESTION},
            scope=Scope.INFERENCE,
            answer=_tokenize,
        ),
        *_MODEL_OPERATIONS,
    ),
    parameters={"version_path": parameter("path", "version", "the model's version; `1` where it has none", TEXT)},
)
