"""Short words for the tests of Anthropic's dialect: make a call, read the neutral request, read the answer's events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dragoman.server.api import Call, ModelProfile
from dragoman.server.apis.anthropic.messages import MessagesDialect
from dragoman.types import ChatPrompt, GenerationEvent, GenerationRequest
from tests.dialects.openai_calls import SERVED, http_call, stream_bytes

QUESTION: Mapping[str, Any] = {"role": "user", "content": "Say it"}
WEATHER: Mapping[str, Any] = {
    "name": "get_weather",
    "description": "Get the weather in a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL: Mapping[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}}
PNG = "iVBORw0KGgo="
PICTURE: Mapping[str, Any] = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": PNG},
}


def messages(name: str = SERVED, **options: Any) -> MessagesDialect:
    """The dialect of a model."""
    return MessagesDialect(ModelProfile(name=name, **options))


def text(words: str, **more: Any) -> dict[str, Any]:
    """A block of text."""
    return {"type": "text", "text": words, **more}


def ask(*, betas: str = "", **body: Any) -> Call:
    """A parsed call; messages and max_tokens are filled in."""
    sent = {"max_tokens": 2000, "messages": [QUESTION], **body}
    return messages().parse(http_call(sent, anthropic_beta=betas))


def request(**body: Any) -> GenerationRequest:
    """The neutral request of a call."""
    return ask(**body).requests[0]


def told(**body: Any) -> list[dict[str, Any]]:
    """The conversation as templates see it."""
    prompt = request(**body).prompt
    assert isinstance(prompt, ChatPrompt)
    return [dict(message) for message in prompt.messages]


def events_of(call: Call, events: Iterable[GenerationEvent] | None = None) -> list[dict[str, Any]]:
    """The events of a streamed answer; checks that each has its name."""
    found = []
    for frame in stream_bytes(call, events).decode().removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found
