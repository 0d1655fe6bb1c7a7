"""Ollama's dialects as its tests use them: for a model that can do everything, with clocks that stand still."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

from dragoman.server.api import Call, HttpCall, ModelProfile
from dragoman.server.apis.ollama.dialects import ChatDialect, GenerateDialect
from dragoman.server.apis.ollama.encoder import Clock
from dragoman.types import ChatPrompt, GenerationRequest, TextPrompt
from tests.support.real_dialects import fake_profile

NOW_S = 1_716_825_108.75
ABLE = frozenset({"chat", "tools", "thinking", "vision", "insert"})
MESSAGES = [{"role": "user", "content": "Hello"}]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def able_profile(**more: Any) -> ModelProfile:
    """The profile of a model that can do everything."""
    return fake_profile(**{"abilities": ABLE, "aliases": ("nickname:latest",), **more})


def clock() -> Clock:
    """It is always the same time, and half a second passes between two looks at the watch."""
    watch = count(1.0, 0.5)
    return Clock(lambda: NOW_S, lambda: next(watch))


def dialect_for(path: str, profile: ModelProfile | None = None) -> GenerateDialect | ChatDialect:
    """The dialect that answers on that path."""
    kind = ChatDialect if path == "/api/chat" else GenerateDialect
    return kind(profile or able_profile(), clock())


def http_call(path: str, body: dict[str, Any]) -> HttpCall:
    """A call with that body."""
    content = json.dumps(body).encode()
    return HttpCall("POST", path, content, {"content-type": "application/json"}, request_id="r")


def generate(profile: ModelProfile | None = None, **body: Any) -> Call:
    """A call of /api/generate, parsed."""
    full = {"model": "fake", "prompt": "Hello", **body}
    return dialect_for("/api/generate", profile).parse(http_call("/api/generate", full))


def chat(profile: ModelProfile | None = None, **body: Any) -> Call:
    """A call of /api/chat, parsed."""
    full = {"model": "fake", "messages": MESSAGES, **body}
    return dialect_for("/api/chat", profile).parse(http_call("/api/chat", full))


def only_request(call: Call) -> GenerationRequest:
    """The call's request."""
    [request] = call.requests
    return request


def conversation(call: Call) -> ChatPrompt:
    """The conversation that the call's request is."""
    prompt = only_request(call).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def text(call: Call) -> TextPrompt:
    """The text that the call's request is."""
    prompt = only_request(call).prompt
    assert isinstance(prompt, TextPrompt)
    return prompt
