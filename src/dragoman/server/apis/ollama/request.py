"""The bodies of `/api/generate` and `/api/chat`: options and other fields, how they are read except for prompts; errors.

On the event loop. Sources: Ollama API reference (docs/api.md), its Modelfile reference, API types and server; its Python
client.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from dragoman.errors import ServerError, UnsupportedFeature
from dragoman.parameters import PARAMETERS, UINT32_MAX, Bounds, SamplingFields, seconds_of
from dragoman.server.api import HttpCall, ModelProfile, model_of_body
from dragoman.server.apis.openai_wire.conversation import Tool
from dragoman.server.apis.openai_wire.fields import (
    check_bounds,
    check_number,
    decode_object,
    read_struct,
    unknown_names,
)
from dragoman.server.apis.openai_wire.grammars import read_json_schema
from dragoman.server.apis.openai_wire.keeping import is_ttl_idle
from dragoman.server.apis.openai_wire.llamacpp_names import NO_MIROSTAT, NO_SHIFT
from dragoman.server.apis.openai_wire.profile import MAX_SHOWN_LENGTH, Profile
from dragoman.server.descriptions import json_teller, statuses
from dragoman.server.observation.record import current_call
from dragoman.types import Grammar

# --- options ----------------------------------------------------------------------------------------------------------

WORDS = Profile(name="ollama")
_STARTED = "the model was loaded when the server started, as the operator chose"

IGNORED_OPTIONS: Mapping[str, str] = {
    "num_ctx": "the context is as long as the server was started with",
    "mirostat": NO_MIROSTAT,
    "mirostat_tau": NO_MIROSTAT,
    "mirostat_eta": NO_MIROSTAT,
    "tfs_z": "there is no tail-free sampling here",
    "penalize_newline": "penalties hold for line ends as for other tokens",
    "draft_num_predict": "the server decides how tokens are guessed",
    **dict.fromkeys(
        (
            "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "f16_kv", "logits_all",
            "vocab_only", "use_mmap", "use_mlock", "embedding_only",
        ),
        _STARTED,
    ),
}  # fmt: skip
"""Options without effect, and why; they are named to the client."""

OPTIONS = Profile(
    name="ollama",
    place="options.",
    bounds={
        "num_predict": Bounds(-2, UINT32_MAX),
        "num_keep": Bounds(-1, UINT32_MAX),
        "temperature": PARAMETERS["temperature"].bounds or Bounds(),
    },
    clips_overflow=True,
    defaults={"temperature": 0.8, "top_k": 40, "top_p": 0.9},
    random_seeds=frozenset({-1}),
    ignored=IGNORED_OPTIONS,
    asks_nothing={"mirostat": 0, "tfs_z": 1.0},
)


class OllamaOptions(SamplingFields, kw_only=True):
    """Everything in `options` that has an effect; None = not given."""

    num_predict: int | None = None
    num_keep: int | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None


# --- bodies -----------------------------------------------------------------------------------------------------------


class OllamaBody(msgspec.Struct, kw_only=True):
    """Fields that `/api/generate` and `/api/chat` share; None = not given. `stream` absent = true.

    `format`: "json", or a JSON schema. `think`: true, false, or how much the model reasons first. `keep_alive`: seconds, or
    a duration like "5m".
    """

    model: str | None = None
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    keep_alive: float | str | None = None
    options: OllamaOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    truncate: bool | None = None
    shift: bool | None = None


class OllamaGenerateBody(OllamaBody, kw_only=True):
    """The body of POST /api/generate. `images`: base64. `context`: the token ids that an earlier answer gave."""

    prompt: str | None = None
    suffix: str | None = None
    images: list[str] | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    raw: bool | None = None


class OllamaFunction(msgspec.Struct, kw_only=True):
    """The function of a tool call that was made earlier in the conversation."""

    name: str
    arguments: dict[str, Any] | None = None


class OllamaToolCall(msgspec.Struct, kw_only=True):
    """A tool call that the assistant made earlier in the conversation."""

    function: OllamaFunction
    id: str | None = None


class OllamaMessage(msgspec.Struct, kw_only=True):
    """One message of the conversation. `tool_name`: of role `tool`, whose result this is. `images`: base64."""

    role: str | None = None
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[OllamaToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatBody(OllamaBody, kw_only=True):
    """The body of POST /api/chat."""

    messages: list[OllamaMessage] | None = None
    tools: list[Tool] | None = None


# --- errors -----------------------------------------------------------------------------------------------------------

STATUSES = statuses(overloaded=503, engine_dead=500)

_PICTURE = re.compile(r"messages\[(\d+)\]\.content\[(\d+)\](?:\.image_url(?:\.url)?| of type image_url)")


class OllamaError(msgspec.Struct):
    """The body of an error, and the last line of a stream that broke off."""

    error: str


def told(error: ServerError, http: HttpCall) -> str:
    """The error in one line, with places in the neutral request replaced by their names in this API."""
    if error.kind == "not_found" and error.param == "model" and (name := model_of_body(http, None)):
        return not_found(name)
    if not error.param or not error.param.startswith("messages"):
        return error.message
    # A prompt is one turn of a conversation here.
    place = r"images[\2]" if http.field("messages") is None else r"messages[\1].images[\2]"
    return _PICTURE.sub(place, error.message)


def not_found(name: str) -> str:
    """The error for a model that is not served; a long name is cut."""
    return f"model '{' '.join(name[:MAX_SHOWN_LENGTH].split())}' not found"


ERRORS = json_teller(STATUSES, OllamaError, lambda error, http: OllamaError(told(error, http)))

# --- reading ----------------------------------------------------------------------------------------------------------

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
    return {name: value for name, value in options.items() if value is not None} if isinstance(options, dict) else {}


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
