"""Chunks of text alone are made from bytes kept for the stream; nobody can tell them from chunks that are built anew."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dragoman.server.api import Call, ModelProfile
from dragoman.server.apis.openai_wire.chat import ChatDialect
from dragoman.types import FinishReason, GenerationEvent, PromptInfo, ToolCallDelta
from tests.dialects.openai_calls import ROUTES, CompletionsApi, chat, chunks, complete, http_call, stream_bytes, token
from tests.support.tables import table

PROMPT = PromptInfo("Hi", (1, 2))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
"""Everything a detokenizer can give, control characters included; it gives no surrogates."""


def event(text: str, *, index: int = 0, reason: FinishReason | None = None, **parts: Any) -> GenerationEvent:
    """One token with that text."""
    return GenerationEvent(index, text, (token(text),), reason, **{"content": text, **parts})


def answer(*texts: str, num_sequences: int = 1) -> list[GenerationEvent]:
    """Sequences that say the same, side by side."""
    last = len(texts) - 1
    return [
        event(text, index=index, reason=FinishReason.EOS if i == last else None, prompt=None if i or index else PROMPT)
        for i, text in enumerate(texts)
        for index in range(num_sequences)
    ]


@given(text=TEXTS)
def test_a_chat_chunk_carries_any_text(text: str) -> None:
    _, middle, _ = choices_of(chat("v1", stream=True, stream_options={}), text)
    assert middle == {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}


@table("api", ["v1", "v3", "lmi"])
@given(text=TEXTS)
def test_a_completion_chunk_carries_any_text(api: CompletionsApi, text: str) -> None:
    _, middle, _ = choices_of(complete(api, stream=True), text)
    assert middle == {"index": 0, "text": text, "logprobs": None, "finish_reason": None}


def choices_of(call: Call, text: str) -> list[dict[str, Any]]:
    """The choices of an answer whose middle token has this text."""
    frames = [call.encoder.event(0, one) for one in answer("a", text, "z")]
    return [json.loads(frame.removeprefix(b"data: "))["choices"][0] for frame in frames]


@table("usage", [True, False])
@table("make", [chat, complete])
def test_chunks_of_one_stream_differ_in_their_choices_only(make: Any, usage: bool) -> None:
    call = make("v1", stream=True, n=2, stream_options={"include_usage": usage})
    found = chunks(call, answer("a", "b", "c", "d", num_sequences=2))[:8]
    assert [chunk["choices"][0]["index"] for chunk in found] == [0, 1] * 4
    assert len({json.dumps({**chunk, "choices": None}) for chunk in found}) == 1


def test_what_comes_with_the_text_is_not_lost() -> None:
    call = chat("v1", stream=True, stream_options={})
    mixed = [
        event("a", prompt=PROMPT),
        event("b"),
        event("cd", content="c", reasoning="d"),
        event("e"),
        event("f", tool_calls=(ToolCallDelta(0, "call-1", "f", "{}"),)),
        event("g", reason=FinishReason.EOS),
    ]
    found = [chunk["choices"][0] for chunk in chunks(call, mixed)]
    assert [choice["delta"].get("content") for choice in found] == ["a", "b", "c", "e", "f", "g"]
    assert [choice["delta"].get("reasoning_content") for choice in found] == [None, None, "d", None, None, None]
    assert ["tool_calls" in choice["delta"] for choice in found] == [False, False, False, False, True, False]
    assert [choice["finish_reason"] for choice in found] == [None] * 5 + ["tool_calls"]
    assert [choice["delta"].get("role") for choice in found] == ["assistant", *[None] * 5]


def test_each_lmi_chunk_tells_its_own_time() -> None:
    clock = count(1000)
    dialect = ChatDialect(ModelProfile(), ROUTES["invocations"], clock=lambda: next(clock) // 3)
    call = dialect.parse(http_call({"messages": [{"role": "user", "content": "Hi"}], "stream": True}))
    times = [json.loads(line)["created"] for line in stream_bytes(call, answer(*"abcdefgh")).splitlines()]
    assert times == sorted(times)
    assert len(set(times)) >= 3
    assert max(times) == (next(clock) - 1) // 3
