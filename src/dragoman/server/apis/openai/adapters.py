"""vLLM's `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`; `server.adapters` does the work. On the event loop."""

from __future__ import annotations

from functools import partial

import msgspec

from dragoman.errors import Conflict, InvalidPayload, InvalidRequest, NotFound
from dragoman.server.adapters import ServedAdapters
from dragoman.server.api import JSON_MEDIA_TYPE, HttpCall, Reply
from dragoman.server.apis.openai_wire.errors import ERRORS
from dragoman.server.apis.openai_wire.fields import decode_object, read_struct
from dragoman.server.apis.openai_wire.profile import V1
from dragoman.server.changes import Changes
from dragoman.server.describe.answers import Answer
from dragoman.server.describe.json_schema import BOOLEAN, TEXT, Schema, an_object, ref
from dragoman.server.operations import AnswerOperation, Server
from dragoman.server.security.scopes import Scope

_TEXT = "text/plain"


class LoadBody(msgspec.Struct, kw_only=True):
    """The body of POST /v1/load_lora_adapter. `model`: whose adapter it is, the default model's if absent."""

    lora_name: str = ""
    lora_path: str = ""
    load_inplace: bool = False
    model: str | None = None


class UnloadBody(msgspec.Struct, kw_only=True):
    lora_name: str = ""
    model: str | None = None


async def load(http: HttpCall, server: Server) -> Reply:
    body = read_struct(decode_object(http, V1), LoadBody, V1)
    if not body.lora_name or not body.lora_path:
        raise InvalidPayload("Both 'lora_name' and 'lora_path' must be provided.")
    adapters = _adapters(body.model, server)
    try:
        work = adapters.load(body.lora_name, body.lora_path, is_replacing=body.load_inplace)
        await server.shared(Changes.of).run(work)
    except Conflict as error:
        if body.lora_name in adapters.names:
            message = f"The lora adapter '{body.lora_name}' has already been loaded."
            raise InvalidRequest(message, param="lora_name") from error
        raise InvalidRequest(error.message, param="lora_name") from error
    return _done(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload(http: HttpCall, server: Server) -> Reply:
    body = read_struct(decode_object(http, V1), UnloadBody, V1)
    if not body.lora_name:
        raise InvalidPayload("'lora_name' needs to be provided to unload a LoRA adapter.")
    adapters = _adapters(body.model, server)
    if body.lora_name not in adapters.names:
        raise NotFound(f"The lora adapter '{body.lora_name}' cannot be found.", param="lora_name")
    await server.shared(Changes.of).run(adapters.unload(body.lora_name))
    return _done(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _adapters(model: str | None, server: Server) -> ServedAdapters:
    found = server.models.find(model).adapters
    if found is None or not found.can_change:
        raise InvalidRequest("Adapters cannot be loaded here: start the server with --enable-lora")
    return found


def _done(text: str) -> Reply:
    return Reply(200, text.encode(), _TEXT)


def adapter_schemas() -> dict[str, Schema]:
    model = {**TEXT, "description": "whose adapter it is; the default model's if absent"}
    name = {**TEXT, "description": "what requests are to call it, as `model`"}
    path = {**TEXT, "description": "its directory: below the adapter store, or the folder adapters beside the model"}
    inplace = {**BOOLEAN, "default": False, "description": "it may take the place of an adapter of that name"}
    return {
        "LoadAdapter": an_object({"lora_name": name, "lora_path": path}, {"load_inplace": inplace, "model": model}),
        "UnloadAdapter": an_object({"lora_name": name}, {"model": model}),
    }


_operation = partial(AnswerOperation, tag="Adapters", scope=Scope.MANAGEMENT)
_KINDS = (
    "invalid_payload", "invalid_parameter", "invalid_request", "unauthorized", "not_found", "too_large", "no_memory",
    "unavailable", "overloaded", "engine_dead", "server_error",
)  # fmt: skip
_ANSWERS = ERRORS.beside(Answer("it is done", {_TEXT: TEXT}), _KINDS)

ADAPTER_OPERATIONS = (
    _operation(
        path="/v1/load_lora_adapter",
        summary="Load an adapter, as vLLM does",
        answers=_ANSWERS,
        body={JSON_MEDIA_TYPE: ref("LoadAdapter")},
        answer=load,
    ),
    _operation(
        path="/v1/unload_lora_adapter",
        summary="Unload an adapter, as vLLM does",
        description="Requests that run go on with it.",
        answers=_ANSWERS,
        body={JSON_MEDIA_TYPE: ref("UnloadAdapter")},
        answer=unload,
    ),
)
