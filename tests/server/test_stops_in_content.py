"""Stop strings end what is content; reasoning and tool calls may hold any of them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.server.generation.extensions import Extensions
from dragoman.server.generation.service import Service
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import (
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    StopStrings,
)
from tests.server.output_texts import output_format, parsed, parser, request
from tests.server.test_service_text import truncated
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_engine import FakeEngine, saying
from tests.support.streaming import stream_of
from tests.support.tables import table
from tests.support.tiers import examples

TEMPLATE = ChatTemplate(
    "{% for t in tools or [] %}{{ t }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
)
OSLO = '<tool_call>\n{"name": "weather", "arguments": {"city": "END"}}\n</tool_call>'
HARMONY = (
    "<|channel|>analysis<|message|>END?<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.f<|message|>{"a":"END"}'
)
STOPPED, EOS, LENGTH = FinishReason.STOP_STRING, FinishReason.EOS, FinishReason.LENGTH


def asking(sampling: SamplingParams | None = None, **asked: Any) -> GenerationRequest:
    """A conversation with tools that asks for an end at END, unless `asked` says otherwise."""
    wanted = msgspec.structs.replace(request("auto"), **({"stop": ("END",)} | asked))
    return msgspec.structs.replace(wanted, sampling=sampling or SamplingParams())


def serving(text: str, tools: str = "hermes", tokens_per_step: int = 1) -> tuple[Service, FakeEngine]:
    """A service of a model that writes this text and thinks between <think> and </think>."""
    layout = output_format(tools, "think")
    engine = FakeEngine(saying(text), tokens_per_step=tokens_per_step)
    extensions = Extensions(make_parser=layout.parser, unsearched=layout.unsearched)
    made = Service(name="m", engine=engine, tokenizer=ByteTokenizer(), chat_template=TEMPLATE, extensions=extensions)
    return made, engine


async def streamed(service: Service, wanted: GenerationRequest) -> list[GenerationEvent]:
    """All events of the request."""
    return [event async for event in stream_of(service, wanted)]


def answered(
    text: str, tools: str = "hermes", tokens_per_step: int = 1, **asked: Any
) -> tuple[GenerationResult, list[GenerationEvent], FakeEngine]:
    """What a service makes of a model's text, whole and as a stream, and the engine that was asked."""
    service, engine = serving(text, tools, tokens_per_step)
    wanted = asking(**asked)
    return asyncio.run(service.generate(wanted)), asyncio.run(streamed(service, wanted)), engine


@table(
    ("text", "asked", "content", "reasoning", "cities", "reason"),
    [
        ("a END b", {}, "a ", "", [], STOPPED),
        ("<think>No END yet.</think>Yes. END no", {}, "Yes. ", "No END yet.", [], STOPPED),
        ("<think>END</think>Yes.", {}, "Yes.", "END", [], EOS),
        ("<think>Hm. EN</think>D is all.", {}, "D is all.", "Hm. EN", [], EOS),
        (OSLO, {}, "", "", ["END"], EOS),
        (f"I look.{OSLO}", {}, "I look.", "", ["END"], EOS),
        (f"a END{OSLO}", {}, "a ", "", [], STOPPED),
        (f"EN{OSLO}", {}, "EN", "", ["END"], EOS),
        (f"{OSLO} a END b", {}, "a ", "", ["END"], STOPPED),
        (f"<think>END</think>{OSLO}a END", {}, "a ", "END", ["END"], STOPPED),
        ("<think>END</think>a END b", {"include_stop_in_text": True}, "a END", "END", [], STOPPED),
        (f"a {OSLO} b EN", {"include_stop_in_text": True}, None, "", ["END"], EOS),
        ("a EN", {}, "a EN", "", [], EOS),
        ("a <tool_call> END", {}, "a <tool_call> ", "", [], STOPPED),
        (OSLO, {"max_tokens": OSLO.index("END") + 3}, OSLO[: OSLO.index("END") + 3], "", [], LENGTH),
        ("x END y END z", {"sampling": SamplingParams(min_tokens=6)}, "x END y ", "", [], STOPPED),
        ("<think>END</think>x END", {"sampling": SamplingParams(n=3)}, "x ", "END", [], STOPPED),
        (f"<think>END</think>{OSLO}x END y", {"sampling": SamplingParams(best_of=3)}, "x ", "END", ["END"], STOPPED),
        ("<think>END</think>x END y", {"sampling": SamplingParams(num_beams=2)}, "x ", "END", [], STOPPED),
        ("a END b", {"parse_reasoning": False, "parse_tool_calls": False}, "a ", "", [], STOPPED),
    ],
)
def test_stop_strings_end_the_content_and_nothing_else(
    text: str, asked: dict[str, Any], content: str | None, reasoning: str, cities: list[str], reason: FinishReason
) -> None:
    for tokens_per_step in (1, 4, 1_000):
        result, events, _ = answered(text, tokens_per_step=tokens_per_step, **asked)
        for sequence in result.sequences:
            assert content is None or sequence.content == content
            assert (sequence.reasoning, sequence.finish_reason) == (reasoning, reason)
            assert [call.arguments for call in sequence.tool_calls] == [f'{{"city": "{city}"}}' for city in cities]
            assert sequence.stop_match == ("END" if reason is STOPPED else None)
            streamed = [event for event in events if event.index == sequence.index]
            assert "".join(event.content for event in streamed) == sequence.content
            assert "".join(event.reasoning for event in streamed) == reasoning
            assert [event.finish_reason for event in streamed if event.finish_reason is not None] == [reason]


@settings(max_examples=examples(60))
@given(
    text=st.text("ab\n<", max_size=20),
    stops=st.lists(st.text("ab\n<", min_size=1, max_size=3), min_size=1, max_size=2),
    includes_stop=st.booleans(),
    tokens_per_step=st.integers(1, 4),
)
def test_content_after_reasoning_is_cut_as_a_whole_text_would_be(
    text: str, stops: list[str], includes_stop: bool, tokens_per_step: int
) -> None:
    written = f"<think>ab\nab</think>{text}"
    whole = parsed(parser(output_format(reasoning="think")), [written]).content
    wanted = asking(stop=tuple(stops), include_stop_in_text=includes_stop)
    events = asyncio.run(streamed(serving(written, tokens_per_step=tokens_per_step)[0], wanted))
    expected, shown = truncated(whole, stops, includes_stop=includes_stop), ""
    for event in events:
        shown += event.content
        assert expected.startswith(shown)  # nothing is shown that is taken back
    assert shown == expected


def test_harmony_messages_that_are_no_content_hold_any_text() -> None:
    final = "<|call|><|start|>assistant<|channel|>final<|message|>Well. END no"
    (sequence,) = answered(HARMONY + final, "gpt_oss")[0].sequences
    assert (sequence.content, sequence.reasoning, sequence.finish_reason) == ("Well. ", "END?", STOPPED)
    assert [call.arguments for call in sequence.tool_calls] == ['{"a":"END"}']


@table(
    ("tools", "stop", "is_watched"),
    [("hermes", "END", True), ("hermes", "<", False), ("hermes", "ol", False), ("hermes", "x<t", False),
     ("hermes", "\n", False), ("json", "END", False), ("gpt_oss", "END", False)],
)  # fmt: skip
def test_an_engine_that_ranks_watches_for_stop_strings_where_marks_tell_what_is_content(
    tools: str, stop: str, is_watched: bool
) -> None:
    """Elsewhere, and where sequences are not ranked, the service ends them."""
    for engine, expected in (
        (answered("x", tools, stop=(stop,), sampling=SamplingParams(best_of=2))[2], is_watched),
        (answered("x", tools, stop=(stop,))[2], False),
    ):
        assert [one.stop is not None for one in engine.requests] == [expected] * 2
    plain = answered("x", tools, stop=(stop,), parse_reasoning=False, parse_tool_calls=False)[2]
    assert [one.stop for one in plain.requests] == [StopStrings((stop,))] * 2


def test_ranked_sequences_are_generated_up_to_the_stop_string_in_their_content() -> None:
    text = f"<think>END</think>{OSLO}x END"
    result = answered(text + " y" * 50, sampling=SamplingParams(best_of=3))[0]
    assert "".join(token.text for token in result.sequences[0].tokens) == text
