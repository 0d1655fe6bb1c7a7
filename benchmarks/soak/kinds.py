"""The eleven kinds of requests in five APIs, each with a body that is right and one that is not.

Does: make them from dice. Does not: send them, or say how their clients behave. Called by `mix`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.soak.request import (
    ANSWERED,
    REFUSED,
    WRONG,
    Request,
    TokenReader,
    detail_tokens,
    last_detail_tokens,
    last_usage_tokens,
    usage_tokens,
)

MODEL = "soak"
WORDS = ("the", "ship", "sailed", "on", "a", "sea", "of", "glass", "until", "night", "came", "and", "Ahab", "spoke")
_INSTRUCTIONS = (
    "Be brief.",
    "Tell of the sea, and of nothing else. " * 12,
)  # the second one fills blocks that are shared
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request. `valid` and `invalid` make its body from dice; `tokens` reads a valid one's answer."""

    path: str
    valid: Callable[[random.Random], Body]
    invalid: Callable[[random.Random], Body]
    tokens: TokenReader | None = None


def _text(dice: random.Random) -> str:
    """A prompt of 1 to 150 words, some of which nobody has used before."""
    words = [dice.choice(WORDS) if dice.random() < 0.8 else f"{dice.getrandbits(24):x}" for _ in range(_length(dice))]
    return " ".join(words)


def _length(dice: random.Random) -> int:
    return dice.choice((1, 8, 30, 150))


def _size(dice: random.Random) -> int:
    return dice.choice((1, 4, 16, 48))


def _messages(dice: random.Random) -> list[Body]:
    return [{"role": "system", "content": dice.choice(_INSTRUCTIONS)}, {"role": "user", "content": _text(dice)}]


def _schema(dice: random.Random) -> Body:
    """A JSON schema whose names differ from every other's."""
    kinds = ({"type": "string"}, {"type": "integer"}, {"enum": ["red", "green"]}, {"type": "boolean"})
    names = [f"field_{dice.getrandbits(20):x}" for _ in range(dice.randint(1, 5))]
    return {"type": "object", "properties": {name: dice.choice(kinds) for name in names}, "required": names}


def _completion(dice: random.Random, **more: Any) -> Body:
    return {"model": MODEL, "prompt": _text(dice), "max_tokens": _size(dice), **more}


def _chat(dice: random.Random, **more: Any) -> Body:
    return {"model": MODEL, "messages": _messages(dice), "max_tokens": _size(dice), **more}


def _lmi(dice: random.Random, stream: bool = False, **more: Any) -> Body:
    return {"inputs": _text(dice), "parameters": {"max_new_tokens": _size(dice), **more}, "stream": stream}


def _schema_chat(dice: random.Random) -> Body:
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": _schema(dice)}}
    return _chat(dice, response_format=wanted)


def _batch(dice: random.Random) -> Body:
    prompts = [{"id": number, "prompt": _text(dice)} for number in range(dice.randint(1, 4))]
    return {"prompts": prompts, "maxLength": _size(dice)}


KINDS: dict[str, Kind] = {
    "completion": Kind(
        "/v1/completions", lambda d: _completion(d, logprobs=3), lambda d: _completion(d, temperature=-1), usage_tokens
    ),
    "completion-stream": Kind(
        "/v1/completions",
        lambda d: _completion(d, stream=True, temperature=0.8, top_p=0.9, frequency_penalty=0.5),
        lambda d: _completion(d, stream=True, top_p=7),
    ),
    "chat": Kind(
        "/v1/chat/completions",
        lambda d: _chat(d, n=2, seed=d.randrange(99)),
        lambda d: _chat(d, n=0),
        usage_tokens,
    ),
    "chat-stream": Kind(
        "/v1/chat/completions",
        lambda d: _chat(d, stream=True, logprobs=True, top_logprobs=2, stream_options={"include_usage": True}),
        lambda d: _chat(d, stream=True, top_logprobs=99, logprobs=True),
        last_usage_tokens,
    ),
    "schema": Kind(
        "/v1/chat/completions", _schema_chat, lambda d: _chat(d, response_format={"type": "poem"}), usage_tokens
    ),
    "beams": Kind(
        "/v3/completions", lambda d: _completion(d, best_of=3, n=2), lambda d: _completion(d, best_of=-1), usage_tokens
    ),
    "ovms-chat-stream": Kind(
        "/v3/chat/completions", lambda d: _chat(d, stream=True, stop=["night"]), lambda d: {"model": MODEL}
    ),
    "lmi": Kind("/invocations", lambda d: _lmi(d, details=True), lambda d: _lmi(d, temperature="warm"), detail_tokens),
    "lmi-stream": Kind(
        "/invocations",
        lambda d: _lmi(d, stream=True, do_sample=True, top_k=20, stop=["sea"]),
        lambda d: {"inputs": 5, "stream": True},
    ),
    "tgi-stream": Kind(
        "/generate_stream",
        lambda d: {"inputs": _text(d), "parameters": {"max_new_tokens": _size(d), "details": True, "top_n_tokens": 2}},
        lambda d: {"inputs": _text(d), "parameters": {"max_new_tokens": 0}},
        last_detail_tokens,
    ),
    "text-batch": Kind("/api/generate-batch", _batch, lambda d: {"prompts": [], "maxLength": _size(d)}),
}


STREAMS = tuple(name for name in KINDS if name.endswith("-stream"))


def valid(name: str, dice: random.Random) -> Request:
    """A request of that kind that the server should answer, or refuse for want of room."""
    kind = KINDS[name]
    return Request(name, kind.path, _content(kind.valid(dice)), ANSWERED | REFUSED, tokens=kind.tokens)


def invalid(name: str, dice: random.Random) -> Request:
    """A request of that kind that the server should not take; a full one may refuse it before it reads what it is."""
    kind = KINDS[name]
    return Request(name, kind.path, _content(kind.invalid(dice)), WRONG | REFUSED)


def for_model(name: str, model: str, dice: random.Random) -> Request:
    """A valid request of that kind for another model, which may not be there."""
    kind = KINDS[name]
    body = {**kind.valid(dice), **({"model": model} if kind.path.startswith("/v") else {})}
    path = kind.path if "model" in body else f"/models/{model}/invoke"
    return Request(name, path, _content(body), ANSWERED | REFUSED, tokens=kind.tokens)


MODEL_KINDS = tuple(name for name, kind in KINDS.items() if kind.path.startswith("/v") or kind.path == "/invocations")
"""Kinds of requests that can name a model."""


def _content(body: Body) -> bytes:
    return json.dumps(body).encode()
