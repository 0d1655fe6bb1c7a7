"""From engine outputs to text: what streams is what a whole answer holds, and stop strings never show."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dragoman.server.generation.extensions import Extensions
from dragoman.server.generation.prepare import ServiceLimits
from dragoman.server.generation.service import Service
from dragoman.server.generation.text_until_stop import ParsedText
from dragoman.types import (
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    TextPrompt,
    ToolCall,
    ToolCallDelta,
    TopToken,
)
from tests.support.byte_tokenizer import BOS_ID, END_OF_TURN_ID, EOS_ID, FIM_IDS, ByteTokenizer
from tests.support.fake_engine import ABILITIES, NUM_CACHED_TOKENS, FakeEngine, logprob_of, saying, top_of
from tests.support.streaming import stream_of
from tests.support.tables import table
from tests.support.tiers import examples


def service_over(engine: FakeEngine, extensions: Extensions | None = None) -> Service:
    """A service of the byte model."""
    return Service(name="bytes", engine=engine, tokenizer=ByteTokenizer(), extensions=extensions)


def asking(text: str = "Hi", *, sampling: SamplingParams | None = None, **options: Any) -> GenerationRequest:
    """A request for a completion of `text`."""
    return GenerationRequest("r1", TextPrompt(text), sampling or SamplingParams(), **options)


def events_of(
    engine: FakeEngine, request: GenerationRequest, extensions: Extensions | None = None
) -> list[GenerationEvent]:
    """Everything the request's stream gives."""

    async def collect() -> list[GenerationEvent]:
        return [event async for event in stream_of(service_over(engine, extensions), request)]

    return asyncio.run(collect())


def result_of(engine: FakeEngine, request: GenerationRequest, extensions: Extensions | None = None) -> GenerationResult:
    """The request's whole result."""
    return asyncio.run(service_over(engine, extensions).generate(request))


def truncated(text: str, stops: Sequence[str], *, includes_stop: bool) -> str:
    """The text up to its first stop string, by the definition."""
    for end in range(1, len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end if includes_stop else end - max(map(len, found))]
    return text


@settings(max_examples=examples(150))
@given(
    text=st.text("ab\né", max_size=25),
    stops=st.lists(st.text("ab\né", min_size=1, max_size=4), min_size=1, max_size=3),
    includes_stop=st.booleans(),
    tokens_per_step=st.integers(1, 4),
)
@example(text="aaab", stops=["aab"], includes_stop=False, tokens_per_step=2)
def test_the_stream_is_the_offline_truncation_of_the_full_text(
    text: str, stops: list[str], includes_stop: bool, tokens_per_step: int
) -> None:
    engine = FakeEngine(saying(text), tokens_per_step=tokens_per_step)
    events = events_of(engine, asking(stop=tuple(stops), include_stop_in_text=includes_stop))
    expected = truncated(text, stops, includes_stop=includes_stop)
    shown = ""
    for event in events:
        assert event.text == event.content == "".join(token.text for token in event.tokens)
        shown += event.text
        assert expected.startswith(shown)  # nothing is shown that is taken back
    assert shown == expected
    tokens = [token for event in events for token in event.tokens]
    generated = [*text.encode(), EOS_ID]
    assert [token.id for token in tokens] == generated[: len(tokens)]
    has_match = any(stop in text for stop in stops)
    assert [event.finish_reason for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].finish_reason is (FinishReason.STOP_STRING if has_match else FinishReason.EOS)
    assert (events[-1].stop_match in stops) == has_match
    assert bytes(token.id for token in tokens if token.id < 256).decode("utf-8", "ignore").startswith(expected)


def test_tokens_that_could_begin_a_stop_string_wait_until_they_do_not() -> None:
    events = events_of(FakeEngine(saying("one END? END.")), asking(stop=("END.",)))
    shown = [event.text for event in events]
    assert shown == ["o", "n", "e", " ", "END?", " ", ""]
    assert [len(event.tokens) for event in events] == [1, 1, 1, 1, 4, 1, 4]
    assert events[-1].finish_reason is FinishReason.STOP_STRING
    assert events[-1].stop_match == "END."


def test_text_that_waits_comes_out_when_the_sequence_ends_without_a_match() -> None:
    events = events_of(FakeEngine(saying("one EN")), asking(stop=("END",)))
    assert [(event.text, event.finish_reason) for event in events[-2:]] == [(" ", None), ("EN", FinishReason.EOS)]
    assert [token.text for token in events[-1].tokens] == ["E", "N", ""]


def test_nothing_waits_when_the_stop_string_is_part_of_the_text() -> None:
    events = events_of(FakeEngine(saying("a END. b")), asking(stop=("END.",), include_stop_in_text=True))
    assert [event.text for event in events] == list("a END.")
    assert events[-1].stop_match == "END."


def test_the_token_that_holds_text_and_stop_string_keeps_the_text_before_it() -> None:
    class Syllables(ByteTokenizer):
        def token_bytes(self, token_id: int, *, at_start: bool = False) -> bytes:
            return {1: b"so", 2: b" on.\n\nAnd"}.get(token_id, b"?")

    def run(**options: Any) -> GenerationEvent:
        service = Service(name="m", engine=FakeEngine(lambda request, index: [1, 2, 1]), tokenizer=Syllables())

        async def last() -> GenerationEvent:
            return [event async for event in stream_of(service, asking(stop=("\n\n",), **options))][-1]

        return asyncio.run(last())

    assert [token.text for token in run().tokens] == [" on."]
    assert [token.text for token in run(include_stop_in_text=True).tokens] == [" on.\n\n"]
    assert run().tokens[0].token_text == " on.\n\nAnd"


@table(("min_tokens", "text"), [(0, "a"), (2, "a"), (3, "a.b"), (4, "a.b"), (5, "a.b.c")])
def test_stop_strings_do_not_end_a_sequence_before_its_minimum_of_tokens(min_tokens: int, text: str) -> None:
    result = result_of(
        FakeEngine(saying("a.b.c.d")), asking(sampling=SamplingParams(min_tokens=min_tokens), stop=(".",))
    )
    assert result.sequences[0].text == text


@table(
    ("ids", "options", "reason", "text", "match"),
    [
        (b"ab", {}, FinishReason.EOS, "ab", None),
        (b"ab", {"skip_special_tokens": False}, FinishReason.EOS, "ab", None),
        (b"ab", {"skip_special_tokens": False, "include_stop_in_text": True}, FinishReason.EOS, "ab</s>", None),
        (b"ab", {"skip_special_tokens": False, "include_end_in_text": True}, FinishReason.EOS, "ab</s>", None),
        (b"ab", {"include_stop_in_text": True}, FinishReason.EOS, "ab", None),
        ([97, FIM_IDS.prefix, 98], {"skip_special_tokens": False}, FinishReason.EOS, "a<|pre|>b", None),
        ([97, END_OF_TURN_ID, 98], {}, FinishReason.EOS, "a", None),
        (b"abc", {"stop_token_ids": (98,)}, FinishReason.STOP_TOKEN, "a", 98),
        (b"abc", {"stop_token_ids": (98,), "skip_special_tokens": False}, FinishReason.STOP_TOKEN, "a", 98),
        (b"abc", {"stop_token_ids": (98,), "include_stop_in_text": True}, FinishReason.STOP_TOKEN, "ab", 98),
        (b"abc", {"stop_token_ids": (98,), "include_end_in_text": True}, FinishReason.STOP_TOKEN, "ab", 98),
        (b"abcdef", {"max_tokens": 3}, FinishReason.LENGTH, "abc", None),
        ([97, EOS_ID, 98], {"ignore_eos": True, "max_tokens": 3}, FinishReason.LENGTH, "ab", None),
        ([97, *"🍊".encode()[:2]], {}, FinishReason.EOS, "a\ufffd", None),
        ([97, *"🍊".encode()[:2]], {"max_tokens": 3}, FinishReason.LENGTH, "a\ufffd", None),
        (b"ab", {"max_tokens": 0}, FinishReason.LENGTH, "", None),
    ],
)
def test_how_a_sequence_ends_and_what_its_last_token_shows(
    ids: Sequence[int], options: dict[str, Any], reason: FinishReason, text: str, match: int | None
) -> None:
    names = ("stop_token_ids", "ignore_eos")
    sampling = SamplingParams(**{name: options[name] for name in names if name in options})
    options = {name: value for name, value in options.items() if name not in names}
    (sequence,) = result_of(
        FakeEngine(lambda request, index: list(ids)), asking(sampling=sampling, **options)
    ).sequences
    assert (sequence.finish_reason, sequence.text, sequence.stop_match) == (reason, text, match)
    assert "".join(token.text for token in sequence.tokens) == sequence.text
    if reason is FinishReason.EOS:
        assert sequence.tokens[-1].special
        assert sequence.tokens[-1].token_text in ("</s>", "<|end|>")


def test_every_token_is_counted_the_end_included() -> None:
    result = result_of(FakeEngine(saying("abc")), asking("Hello"))
    assert (result.num_prompt_tokens, result.num_completion_tokens) == (5, 4)


def test_a_result_is_the_fold_of_the_stream() -> None:
    request = asking(sampling=SamplingParams(n=2, logprobs=1), stop=("d",))
    engine = FakeEngine(saying("abcde", "xyz"))
    events = events_of(engine, request)
    result = result_of(engine, request)
    for sequence in result.sequences:
        own = [event for event in events if event.index == sequence.index]
        assert sequence.text == "".join(event.text for event in own)
        assert sequence.tokens == tuple(token for event in own for token in event.tokens)
        assert sequence.finish_reason is own[-1].finish_reason
        assert sequence.cumulative_logprob == own[-1].cumulative_logprob
    assert [sequence.text for sequence in result.sequences] == ["abc", "xyz"]


@table("top", [None, 0, 3])
def test_tokens_carry_their_log_probabilities_and_alternatives(top: int | None) -> None:
    result = result_of(FakeEngine(saying("ab")), asking(sampling=SamplingParams(logprobs=top)))
    (sequence,) = result.sequences
    ids = [97, 98, EOS_ID]
    assert [token.logprob for token in sequence.tokens] == [None if top is None else logprob_of(i) for i in ids]
    assert [[one.id for one in token.top] for token in sequence.tokens] == [
        [one.token_id for one in top_of(token_id, top or 0)] for token_id in ids
    ]
    if top:
        assert sequence.tokens[0].top[1] == TopToken(98, "b", logprob_of(97) - 1, b"b")
    assert sequence.cumulative_logprob == (None if top is None else pytest.approx(sum(map(logprob_of, ids))))


def test_the_cumulative_log_probability_ends_at_the_stop_string() -> None:
    result = result_of(FakeEngine(saying("abcd")), asking(sampling=SamplingParams(logprobs=0), stop=("bc",)))
    assert result.sequences[0].cumulative_logprob == pytest.approx(sum(map(logprob_of, b"abc")))


def test_the_first_event_tells_about_the_prompt_even_if_the_first_output_waits() -> None:
    events = events_of(FakeEngine(saying("ab")), asking("Hi", sampling=SamplingParams(seed=5), stop=("ax",)))
    assert [event.prompt is not None for event in events] == [True] + [False] * (len(events) - 1)
    prompt = events[0].prompt
    assert prompt is not None
    assert (prompt.text, prompt.token_ids, prompt.seed, prompt.tokens) == ("Hi", (72, 105), 5, ())
    assert prompt.num_cached_tokens == NUM_CACHED_TOKENS
    assert events[0].text == "ab"


def test_what_an_engine_shares_among_callers_is_not_counted_where_they_share_nothing() -> None:
    for can_part, num_cached in ((True, NUM_CACHED_TOKENS), (False, 0)):
        engine = FakeEngine(saying("ab"), capabilities=replace(ABILITIES, cache_salt=can_part))
        limits = ServiceLimits(prefix_cache_per_key=True)
        service = Service(name="bytes", engine=engine, tokenizer=ByteTokenizer(), limits=limits)
        prompt = asyncio.run(service.generate(asking("Hi"))).prompt
        assert prompt is not None
        assert prompt.num_cached_tokens == num_cached


def test_prompt_tokens_carry_log_probabilities_when_asked() -> None:
    sampling = SamplingParams(prompt_logprobs=2)
    engine = FakeEngine(saying("x"))
    service = Service(name="bytes", engine=engine, tokenizer=ByteTokenizer(adds_bos=True))
    prompt = asyncio.run(service.generate(asking("é", sampling=sampling, max_tokens=0))).prompt
    assert [token.id for token in prompt.tokens] == [BOS_ID, *"é".encode()]
    assert [token.text for token in prompt.tokens] == ["<s>", "", "é"]
    assert [token.logprob for token in prompt.tokens] == [None, *map(logprob_of, "é".encode())]
    assert [len(token.top) for token in prompt.tokens] == [0, 2, 2]
    assert [token.special for token in prompt.tokens] == [True, False, False]


def test_speculation_is_counted_even_for_outputs_that_wait() -> None:
    class Speculating(FakeEngine):
        def _steps(self, request: Any) -> Any:
            outputs = super()._steps(request)
            for output in outputs:
                output.num_draft_tokens, output.num_accepted_tokens = 3, 2
            return outputs

    events = events_of(Speculating(saying("ab.x")), asking(stop=("b.!",)))
    num_outputs = len("ab.x") + 1
    assert sum(event.num_draft_tokens for event in events) == 3 * num_outputs
    assert sum(event.num_accepted_tokens for event in events) == 2 * num_outputs


class Splitter:
    """A parser that reads `think|answer`, and calls a tool for every `!`."""

    def __init__(self) -> None:
        self._is_thinking = True
        self._num_calls = 0
        self.was_last = False

    def push(self, text: str, *, is_last: bool) -> ParsedText:
        self.was_last = is_last
        thought, mark, answer = text.partition("|") if self._is_thinking else ("", "", text)
        self._is_thinking = self._is_thinking and not mark
        calls = []
        for _ in range(answer.count("!")):
            calls += [
                ToolCallDelta(self._num_calls, f"id{self._num_calls}", "f"),
                ToolCallDelta(self._num_calls, None, None, "{}"),
            ]
            self._num_calls += 1
        return ParsedText(answer.replace("!", ""), thought, tuple(calls))


def test_a_parser_splits_each_sequence_and_sees_its_end() -> None:
    parsers: list[Splitter] = []

    def make(request: GenerationRequest, prompt_text: str) -> Splitter:
        assert prompt_text == "Hi"
        parsers.append(Splitter())
        return parsers[-1]

    result = result_of(
        FakeEngine(saying("hm|yes!!", "no")),
        asking(sampling=SamplingParams(n=2), parse_reasoning=True),
        Extensions(make_parser=make),
    )
    first, second = result.sequences
    assert (first.text, first.content, first.reasoning) == ("hm|yes!!", "yes", "hm")
    assert first.tool_calls == (ToolCall("id0", "f", "{}"), ToolCall("id1", "f", "{}"))
    assert (second.content, second.reasoning, second.tool_calls) == ("", "no", ())
    assert all(parser.was_last for parser in parsers)
