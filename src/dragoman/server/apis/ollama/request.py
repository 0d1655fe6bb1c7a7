"""Reads everything but the prompt, for `/api/generate` and `/api/chat`.

Does: decode a body, check it, make the neutral request around a prompt, name what has no effect.
Does not: read prompts or messages, or encode. Called by both dialects, on the event loop.
Source: Ollama API reference (docs/api.md), and its server where the reference is silent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from dragoman.durations import seconds_of
from dragoman.errors import InvalidRequest, UnsupportedFeature
from dragoman.parameters import Bounds
from dragoman.server.api import HttpCall, ModelProfile
from dragoman.server.apis.ollama.names import served_name
from dragoman.server.apis.ollama.options import OPTIONS, WORDS, OllamaOptions
from dragoman.server.apis.ollama.schema import OllamaBody
from dragoman.server.apis.openai_wire.fields import (
    check_bounds,
    check_number,
    decode_object,
    read_struct,
    shown,
    unknown_names,
)
from dragoman.server.apis.openai_wire.grammars import read_json_schema
from dragoman.server.apis.openai_wire.sampling import Reading, shared_body, shared_request
from dragoman.server.apis.openai_wire.sampling import reasons_of as reasons_of_options
from dragoman.server.apis.openai_wire.sampling import without_effect as options_without_effect
from dragoman.server.observation.record import current_call
from dragoman.types import GenerationRequest, Grammar, Prompt

BodyT = TypeVar("BodyT", bound=OllamaBody)

LEVELS = ("low", "medium", "high")
"""How much a model may be asked to reason, where it takes that."""

KEPT = "keep_alive"
IGNORED: Mapping[str, str] = {
    KEPT: "models stay loaded: they do not come and go here",
    "truncate": "a prompt that is too long is refused",
    "shift": "an answer ends where the context does",
    "top_logprobs": "logprobs is not true",
    "system": "the prompt is taken as it is",
    "think": "the prompt is taken as it is",
}
"""Parameters that have no effect, where they have none, and why."""

_IMAGE_DATA = re.compile(r"data:image/", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sent(Generic[BodyT]):
    """A body: as it was sent, but for what is null, and typed. `options` are checked."""

    raw: Mapping[str, Any]
    body: BodyT
    name: str

    @property
    def options(self) -> OllamaOptions:
        """The options, none of them given if there are none."""
        return self.body.options or OllamaOptions()

    @property
    def is_streamed(self) -> bool:
        """True if the answer comes line by line, as it does by default."""
        return self.body.stream is not False

    @property
    def wants_unload(self) -> bool:
        """True if the model is to be unloaded."""
        return keep_s(self.body.keep_alive) == 0


def read_body(http: HttpCall, kind: type[BodyT]) -> Sent[BodyT]:
    """The body, everything in it checked that does not need the model. Raises: InvalidRequest."""
    raw = decode_object(http, WORDS)
    body = read_struct(raw, kind, WORDS)
    name = named_model(body.model)
    check_bounds(_given_options(raw), body.options or OllamaOptions(), OPTIONS)
    note_keep_alive(body.keep_alive)
    return Sent(raw, body, name)


def named_model(name: str | None) -> str:
    """The name. Raises: InvalidPayload if there is none."""
    if not name:
        raise WORDS.payload_fault("model", "model is required", param="model")
    return name


def note_keep_alive(value: float | str | None) -> None:
    """Record how long the model is to stay after this call. Raises: InvalidParameter if `value` is not a duration."""
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
        message = f'keep_alive must be a number of seconds, or a duration like "5m", got {shown(value)}'
        raise WORDS.fault(KEPT, "value", message) from None
    check_number(KEPT, seconds, Bounds(), WORDS)
    return math.inf if seconds < 0 else seconds


def keep_alive_of(http: HttpCall) -> float | None:
    """The same of a call whose body is not read yet; None where it says nothing that can be understood."""
    value = http.field(KEPT)
    try:
        return keep_s(value) if isinstance(value, str | int | float) else None
    except InvalidRequest:
        return None


def has_no_effect(name: str) -> bool:
    """True for `keep_alive` where models do not come and go."""
    record = current_call()
    return name == KEPT and not (record is not None and record.is_kept)


class Asked(NamedTuple):
    """The request, and which of the options changed nothing, with the reasons."""

    request: GenerationRequest
    ignored: list[str]
    reasons: dict[str, str]


def neutral_request(
    sent: Sent[BodyT],
    profile: ModelProfile,
    reading: Reading,
    *,
    request_id: str,
    prompt: Prompt,
    is_conversation: bool,
) -> Asked:
    """The request around a prompt; only of a conversation reasoning is told apart. `reading`: of options.

    Raises: InvalidRequest.
    """
    grammar, logprobs = format_grammar(sent.body.format), _logprobs(sent.body, profile)
    options = sent.options
    limit = options.num_predict or 0  # 0, -1 and -2 all mean as many as fit
    shared = shared_body(options, model=served_name(sent.name, profile), max_tokens=limit if limit > 0 else None)
    request = shared_request(shared, reading, request_id=request_id, prompt=prompt, logprobs=logprobs, grammar=grammar)
    raw = _given_options(sent.raw)
    ignored = options_without_effect(raw, shared, request, reading, OllamaOptions)
    reasons = {f"options.{name}": reason for name, reason in reasons_of_options(ignored, shared, reading).items()}
    if is_conversation:
        request = msgspec.structs.replace(request, parse_reasoning=True)
    return Asked(request, [f"options.{name}" for name in ignored], reasons)


def format_grammar(value: str | dict[str, Any] | None) -> Grammar | None:
    """The grammar that the answer must match. Raises: InvalidParameter."""
    if value is None or value == "":
        return None
    if value == "json":
        return Grammar("json_object", param="format")
    if isinstance(value, str):
        raise WORDS.fault("format", "value", f'format must be "json" or a JSON schema, got {shown(value)}')
    return read_json_schema("format", value, WORDS)


def thinking_kwargs(think: bool | str | None, profile: ModelProfile) -> dict[str, Any]:
    """Template variables for reasoning; both names are in use. Raises: InvalidRequest."""
    if isinstance(think, str):
        think = {"true": True, "false": False}.get(think.lower(), think)
    if isinstance(think, str) and think not in LEVELS:
        message = f"think must be true, false, {', '.join(LEVELS[:-1])} or {LEVELS[-1]}, got {shown(think)}"
        raise WORDS.fault("think", "value", message)
    if think and "thinking" not in profile.abilities:
        raise UnsupportedFeature(
            f"think is not supported: model {profile.name} does not support thinking", param="think"
        )
    if think is None:
        return {}
    switches: dict[str, Any] = {"enable_thinking": bool(think), "thinking": bool(think)}
    return {**switches, "reasoning_effort": think} if isinstance(think, str) else switches


def image_part(data: str, path: str) -> dict[str, Any]:
    """A picture as conversations hold it; which kind it is, its bytes say. Raises: InvalidParameter."""
    if not data:
        raise WORDS.fault(path, "empty", f'{path} must be base64 data of an image, got ""')
    url = data if _IMAGE_DATA.match(data) else f"data:image/any;base64,{data}"
    return {"type": "image_url", "image_url": {"url": url}}


def content_of(text: str, images: list[str] | None, path: str) -> str | list[dict[str, Any]]:
    """A message's content: its text, after its pictures if it has some. Raises: InvalidParameter."""
    if not images:
        return text
    parts = [image_part(data, f"{path}images[{i}]") for i, data in enumerate(images)]
    return [*parts, {"type": "text", "text": text}] if text else parts


def without_effect(sent: Sent[BodyT]) -> list[str]:
    """Names of what was sent beside the options and changes nothing, in the order in which it was sent."""
    body = sent.body
    idle = set(unknown_names(sent.raw, type(body)))
    if has_no_effect(KEPT):
        idle.add(KEPT)
    if body.truncate:
        idle.add("truncate")
    if body.shift:
        idle.add("shift")
    if not body.logprobs and body.top_logprobs:
        idle.add("top_logprobs")
    return [name for name in sent.raw if name in idle]


def idle_without_text(sent: Sent[BodyT]) -> list[str]:
    """The same of a call that asks for no text, of which the model's name counts."""
    unknown = unknown_names(sent.raw, type(sent.body))
    return [name for name in sent.raw if name in unknown or has_no_effect(name)] + [
        f"options.{name}" for name in _given_options(sent.raw)
    ]


def _given_options(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The options as they were sent, but for what is null; the text "null" is none."""
    options = raw.get("options")
    return {name: one for name, one in options.items() if one is not None} if isinstance(options, dict) else {}


def reasons_of(names: list[str]) -> dict[str, str]:
    """Why these have no effect; those that are unknown have no reason."""
    return {name: IGNORED[name] for name in names if name in IGNORED}


def _logprobs(body: OllamaBody, profile: ModelProfile) -> int | None:
    if body.top_logprobs is not None:
        check_number("top_logprobs", body.top_logprobs, Bounds(0, profile.limits.max_logprobs), WORDS)
    return (body.top_logprobs or 0) if body.logprobs else None
