"""Reads bodies except prompts. On the event loop. Source: Ollama API reference (docs/api.md), and its server."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from dragoman.durations import seconds_of
from dragoman.errors import UnsupportedFeature
from dragoman.parameters import Bounds
from dragoman.server.api import HttpCall, ModelProfile
from dragoman.server.apis.ollama.options import OPTIONS, WORDS, OllamaOptions
from dragoman.server.apis.ollama.schema import OllamaBody
from dragoman.server.apis.openai_wire.fields import (
    check_bounds,
    check_number,
    decode_object,
    read_struct,
    unknown_names,
)
from dragoman.server.apis.openai_wire.grammars import read_json_schema
from dragoman.server.apis.openai_wire.keeping import is_ttl_idle
from dragoman.server.apis.openai_wire.llamacpp_names import NO_SHIFT
from dragoman.server.observation.record import current_call
from dragoman.types import Grammar

BodyT = TypeVar("BodyT", bound=OllamaBody)

LEVELS = ("low", "medium", "high")
"""Levels of reasoning, for models that have them."""

KEPT = "keep_alive"
IGNORED: Mapping[str, str] = {
    KEPT: "models stay loaded: they do not come and go here",
    "truncate": "a prompt that is too long is refused",
    "shift": NO_SHIFT,
    "top_logprobs": "logprobs is not true",
    "system": "the prompt is taken as it is",
    "think": "the prompt is taken as it is",
}
_IMAGE_DATA = re.compile(r"data:image/", re.IGNORECASE)


class Sent(NamedTuple, Generic[BodyT]):
    """A body without nulls, as sent and typed. `options`: without nulls."""

    raw: Mapping[str, Any]
    body: BodyT
    name: str
    options: Mapping[str, Any]


def read_body(http: HttpCall, kind: type[BodyT]) -> Sent[BodyT]:
    """The body, with all checks that need no model. Raises: InvalidRequest."""
    raw = decode_object(http, WORDS)
    body = read_struct(raw, kind, WORDS)
    name, options = named_model(body.model), given_options(raw)
    check_bounds(options, body.options or OllamaOptions(), OPTIONS)
    note_keep_alive(body.keep_alive)
    return Sent(raw, body, name, options)


def named_model(name: str | None) -> str:
    """Raises: InvalidPayload if there is no name."""
    if not name:
        raise WORDS.payload_fault("model", "model is required", param="model")
    return name


def given_options(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The options as sent, without nulls; the text "null" is none."""
    options = raw.get("options")
    return {name: one for name, one in options.items() if one is not None} if isinstance(options, dict) else {}


def note_keep_alive(value: float | str | None) -> None:
    """Record how long the model stays after this call. Raises: InvalidParameter if `value` is not a duration."""
    seconds = keep_s(value)
    record = current_call()
    if record is not None:
        record.keep_s = seconds


def keep_s(value: float | str | None) -> float | None:
    """Seconds to keep the model, inf if `value` is negative, None if it is not given. Raises: InvalidParameter."""
    if value is None or value == "":
        return None
    try:
        seconds = seconds_of(value) if isinstance(value, str) else value
    except ValueError:
        raise WORDS.wrong(KEPT, 'a number of seconds, or a duration like "5m"', value) from None
    check_number(KEPT, seconds, Bounds(), WORDS)
    return math.inf if seconds < 0 else seconds


def format_grammar(value: str | dict[str, Any] | None) -> Grammar | None:
    """The grammar that the answer must match. Raises: InvalidParameter."""
    if value is None or value == "":
        return None
    if value == "json":
        return Grammar("json_object", param="format")
    if isinstance(value, str):
        raise WORDS.wrong("format", '"json" or a JSON schema', value)
    return read_json_schema("format", value, WORDS)


def thinking_kwargs(think: bool | str | None, profile: ModelProfile) -> dict[str, Any]:
    """Template variables for reasoning; both names are in use. Raises: InvalidRequest."""
    if isinstance(think, str):
        think = {"true": True, "false": False}.get(think.lower(), think)
    if isinstance(think, str) and think not in LEVELS:
        raise WORDS.wrong("think", f"true, false, {', '.join(LEVELS[:-1])} or {LEVELS[-1]}", think)
    if think and "thinking" not in profile.abilities:
        message = f"think is not supported: model {profile.name} does not support thinking"
        raise UnsupportedFeature(message, param="think")
    if think is None:
        return {}
    switches: dict[str, Any] = {"enable_thinking": bool(think), "thinking": bool(think)}
    return {**switches, "reasoning_effort": think} if isinstance(think, str) else switches


def logprobs_of(body: OllamaBody, profile: ModelProfile) -> int | None:
    """The number of candidates for each token, None = no log-probabilities. Raises: InvalidParameter."""
    if body.top_logprobs is not None:
        check_number("top_logprobs", body.top_logprobs, Bounds(0, profile.limits.max_logprobs), WORDS)
    return (body.top_logprobs or 0) if body.logprobs else None


def content_of(text: str, images: list[str] | None, path: str) -> str | list[dict[str, Any]]:
    """A message's content: its pictures, then its text. Raises: InvalidParameter."""
    if not images:
        return text
    parts = [_image_part(data, f"{path}images[{i}]") for i, data in enumerate(images)]
    return [*parts, {"type": "text", "text": text}] if text else parts


def _image_part(data: str, path: str) -> dict[str, Any]:
    if not data:
        raise WORDS.wrong(path, "base64 data of an image", data)
    url = data if _IMAGE_DATA.match(data) else f"data:image/any;base64,{data}"
    return {"type": "image_url", "image_url": {"url": url}}


def without_effect(sent: Sent[BodyT], profile: ModelProfile) -> list[str]:
    """Names of fields besides the options that change nothing, in the order of the body."""
    body = sent.body
    does_nothing = {
        KEPT: is_ttl_idle(),
        "truncate": body.truncate,
        "shift": body.shift and not profile.shifts_context,
        "top_logprobs": body.top_logprobs and not body.logprobs,
    }
    unknown = unknown_names(sent.raw, type(body))
    return [name for name in sent.raw if name in unknown or does_nothing.get(name)]


def idle_without_text(raw: Mapping[str, Any], kind: type[msgspec.Struct], known: Collection[str] = ()) -> list[str]:
    """The same for a call that asks for no text; `known`: fields that have an effect even so."""
    idle = {*unknown_names(raw, kind), *((KEPT,) if is_ttl_idle() else ())} - {*known}
    return [name for name in raw if name in idle] + [f"options.{name}" for name in given_options(raw)]
