"""OpenAI's own client reads what the dialects write: objects, streams, tool calls in pieces, error classes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx2
import openai
import pytest

from dragoman.errors import InvalidRequest
from dragoman.server.api import Dialect, HttpCall
from dragoman.types import FinishReason, GenerationEvent, ToolCallDelta
from tests.dialects.openai_calls import chats, completions, stream_bytes, token
from tests.support.scripted import scripted_result
from tests.support.tables import table

MESSAGES: Any = [{"role": "user", "content": "Weather in Oslo?"}]
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def served(dialect: Dialect, events: Sequence[GenerationEvent] | None) -> Callable[[httpx2.Request], httpx2.Response]:
    """A server of one dialect, whose generation is `events` or the script."""

    def answer(sent: httpx2.Request) -> httpx2.Response:
        http = HttpCall("POST", sent.url.path, sent.content, dict(sent.headers), request_id="req-1")
        try:
            call = dialect.open(http).parse()
        except InvalidRequest as error:
            reply = dialect.error_reply(error, http)
            return httpx2.Response(reply.status, content=reply.body, headers={"content-type": reply.media_type})
        if call.stream:
            head = call.encoder.head([])
            return httpx2.Response(200, content=stream_bytes(call, events), headers={"content-type": head.media_type})
        body = call.encoder.full([scripted_result(one) for one in call.requests]).body
        return httpx2.Response(200, content=body, headers={"content-type": "application/json"})

    return answer


def client_of(dialect: Dialect, events: Sequence[GenerationEvent] | None = None) -> openai.OpenAI:
    """OpenAI's client, wired to the dialect without a socket."""
    transport = httpx2.MockTransport(served(dialect, events))
    return openai.OpenAI(
        api_key="key", base_url="http://test/v1", max_retries=0, http_client=httpx2.Client(transport=transport)
    )


@table("route", ["v1", "v3"])
def test_the_client_reads_a_conversation_whole_and_streamed(route: str) -> None:
    with client_of(chats(route)) as client:
        whole = client.chat.completions.create(model="m", messages=MESSAGES, logprobs=True, top_logprobs=2, n=2)
        stream = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert [choice.message.content for choice in whole.choices] == [text, text]
    assert whole.choices[0].logprobs is not None
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


@table("api", ["v1", "v3"])
def test_the_client_reads_a_completion_whole_and_streamed(api: Any) -> None:
    with client_of(completions(api)) as client:
        whole = client.completions.create(model="m", prompt=["a", "b"], logprobs=1, echo=True, max_tokens=3)
        stream = client.completions.create(model="m", prompt="a", max_tokens=3, stream=True)
        text = "".join(chunk.choices[0].text for chunk in stream)
    assert [choice.text for choice in whole.choices] == [f"a{text}", f"b{text}"]
    assert whole.choices[1].logprobs is not None
    assert whole.choices[1].logprobs.text_offset == [0, 1, 6, 15]


def test_the_client_puts_streamed_tool_calls_together() -> None:
    raw = (token("raw"),)
    events = [
        GenerationEvent(0, "raw", raw, tool_calls=(ToolCallDelta(0, "call_1", "weather"),)),
        GenerationEvent(0, "raw", raw, tool_calls=(ToolCallDelta(0, arguments='{"city": '),)),
        GenerationEvent(0, "raw", raw, tool_calls=(ToolCallDelta(0, arguments='"Oslo"}'),)),
        GenerationEvent(0, "", raw, FinishReason.EOS),
    ]
    with (
        client_of(chats("v1"), events) as client,
        client.chat.completions.stream(model="m", messages=MESSAGES, tools=TOOLS) as stream,
    ):
        [choice] = stream.get_final_completion().choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    [call] = choice.message.tool_calls
    assert (call.id, call.function.name) == ("call_1", "weather")
    assert json.loads(call.function.arguments) == {"city": "Oslo"}


@table("route", ["v1", "v3"])
def test_the_client_raises_its_own_error_class(route: str) -> None:
    with client_of(chats(route)) as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=MESSAGES, temperature=9)
    assert "temperature" in str(caught.value.body)
