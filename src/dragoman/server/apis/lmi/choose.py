"""Chooses the dialect of a body on the LMI routes, which carry LMI, chat and completion requests, and the model of a call.

On the event loop. A body that cannot be read is LMI's, whose error it becomes. A key that is null counts as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from dragoman.server.api import HttpCall
from dragoman.server.json_body import NotJson, TooMuchJson, decode_json
from dragoman.server.operations import Server
from dragoman.server.registry import PLACEHOLDER_MODELS, ServedModel

INPUTS = "lmi"
CHAT = "lmi.chat"
V1_CHAT = "lmi.v1_chat"
COMPLETIONS = "lmi.completions"

# SageMaker's multi-model endpoints: the value is an archive's path below the models' prefix, loaded when it is asked for.
TARGET_MODEL = "x-amzn-sagemaker-target-model"

# `curl -d` calls its body a form whatever it holds; a real form is not a JSON object and goes to LMI
_JSON_TYPES = ("", "application/json", "application/x-www-form-urlencoded")

_NULL = msgspec.Raw(b"null")


class _Keys(msgspec.Struct):
    messages: msgspec.Raw = _NULL
    prompt: msgspec.Raw = _NULL
    inputs: msgspec.Raw = _NULL


def dialect_of_body(http: HttpCall) -> str:
    """The dialect's name: an object with `messages` is a conversation, one with `prompt` and no `inputs` a completion."""
    if http.media_type not in _JSON_TYPES:
        return INPUTS
    keys = _keys(http)
    if keys.get("messages") is not None:
        return CHAT
    return COMPLETIONS if keys.get("prompt") is not None and keys.get("inputs") is None else INPUTS


def sole_model_if_unknown(name: str | None, server: Server) -> str | None:
    """`name` where it tells models apart; None, for the default model, if the only model has another name."""
    models = server.models
    return None if name is None or (models.is_single and not models.knows(name)) else name


def target_of(http: HttpCall) -> str:
    return http.headers.get(TARGET_MODEL, "").lstrip("/").removesuffix(".tar.gz")


def borrow_target(http: HttpCall, server: Server) -> AbstractAsyncContextManager[ServedModel] | None:
    """The targeted model while the call runs; None if it targets none, or just the default one."""
    name = target_of(http)
    is_default = name in PLACEHOLDER_MODELS and server.models.get(name) is None
    return None if server.hosting is None or is_default else server.hosting.get_or_load(name)


def _keys(http: HttpCall) -> Mapping[str, Any]:
    try:
        value = http.json()
    except TooMuchJson:
        return {}
    except NotJson:
        return _undecoded(http.body)
    return value if isinstance(value, dict) else {}


def _undecoded(body: bytes) -> Mapping[str, Any]:
    try:
        keys = decode_json(body, _Keys)
    except (NotJson, msgspec.ValidationError):
        return {}
    values = msgspec.structs.asdict(keys)
    return {name: value for name, value in values.items() if bytes(value).strip() != b"null"}
