"""How requests run and end: several sequences, aborts, failures, time limits."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from dragoman.config.resolve import demo_model_dir
from dragoman.errors import EngineDead, EngineFailed, RequestTimeout
from dragoman.server.generation.prepare import ServiceLimits
from dragoman.server.generation.service import Service
from dragoman.tokenizer.chat_template import load_chat_template
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from dragoman.types import (
    ChatPrompt,
    EngineRequest,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    TextPrompt,
)
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_engine import ABILITIES, FakeEngine, saying
from tests.support.streaming import stream_of
from tests.support.tables import table


def service_over(engine: FakeEngine, **parts: Any) -> Service:
    """A service of the byte model."""
    return Service(**{"name": "m", "tokenizer": ByteTokenizer(), **parts}, engine=engine)


def asking(request_id: str = "r1", *, stop: tuple[str, ...] = (), **sampling: Any) -> GenerationRequest:
    """A request for a completion."""
    return GenerationRequest(request_id, TextPrompt("Hi"), SamplingParams(**sampling), stop=stop)


def test_several_sequences_stream_side_by_side_and_finish_one_by_one() -> None:
    engine = FakeEngine(saying("a", "bcd"))

    async def events() -> list[tuple[int, str, FinishReason | None]]:
        return [(e.index, e.text, e.finish_reason) async for e in stream_of(service_over(engine), asking(n=2))]

    eos = FinishReason.EOS
    assert asyncio.run(events()) == [
        (0, "a", None), (1, "b", None), (0, "", eos), (1, "c", None), (1, "d", None), (1, "", eos)
    ]  # fmt: skip
    assert engine.finished == ["r1"]


def test_greedy_sequences_are_copies() -> None:
    result = asyncio.run(service_over(FakeEngine(saying("same"))).generate(asking(n=3, temperature=0.0)))
    assert [sequence.text for sequence in result.sequences] == ["same"] * 3
    assert [sequence.index for sequence in result.sequences] == [0, 1, 2]


def test_a_sequence_that_met_a_stop_string_is_over_while_the_others_go_on() -> None:
    engine = FakeEngine(saying("a.bcdef", "uvwxyz"))
    result = asyncio.run(service_over(engine).generate(asking(n=2, stop=(".",))))
    assert [sequence.text for sequence in result.sequences] == ["a", "uvwxyz"]
    assert [len(sequence.tokens) for sequence in result.sequences] == [2, 7]


def test_a_stop_string_aborts_the_request_in_the_engine() -> None:
    engine = FakeEngine(saying("a.bcdef"))

    async def generate() -> tuple[str, list[str]]:
        result = await service_over(engine).generate(asking(stop=(".",)))
        return result.sequences[0].text, list(engine.aborted)

    assert asyncio.run(generate()) == ("a", ["r1"])
    assert engine.num_outputs == 2


def test_a_stop_string_on_the_last_token_wins_over_the_engines_reason() -> None:
    request = msgspec.structs.replace(asking(stop=(".",)), max_tokens=2)
    (sequence,) = asyncio.run(service_over(FakeEngine(saying("a.b"))).generate(request)).sequences
    assert (sequence.finish_reason, sequence.stop_match) == (FinishReason.STOP_STRING, ".")


@table("num_read", [1, 3])
def test_closing_a_stream_aborts_its_request(num_read: int) -> None:
    engine = FakeEngine(saying("abcdef"))

    async def read_some() -> list[str]:
        async with aclosing(stream_of(service_over(engine), asking())) as events:
            for _ in range(num_read):
                await anext(events)
        return list(engine.aborted)  # now, and not when somebody collects garbage

    assert asyncio.run(read_some()) == ["r1"]
    assert engine.finished == []
    assert engine.num_outputs == num_read


def test_a_stream_that_was_never_read_starts_nothing() -> None:
    engine = FakeEngine(saying("abc"))
    asyncio.run(stream_of(service_over(engine), asking()).aclose())
    assert engine.requests == []


def test_cancelling_a_reader_aborts_its_request_and_no_other() -> None:
    async def scenario() -> tuple[FakeEngine, str]:
        gate = asyncio.Event()
        engine = FakeEngine(saying("abc"), gate=gate, gate_after=1)
        service = service_over(engine)
        first, second = (asyncio.create_task(service.generate(asking(name))) for name in ("r1", "r2"))
        await engine.until_outputs(2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.set()
        return engine, (await second).sequences[0].text

    engine, text = asyncio.run(scenario())
    assert (engine.aborted, engine.finished, text) == (["r1"], ["r2"], "abc")


@table("error_after", [0, 2])
def test_the_engines_errors_come_after_the_events_before_them(error_after: int) -> None:
    engine = FakeEngine(saying("abc"), error=EngineDead("the engine stopped"), error_after=error_after)
    texts: list[str] = []

    async def read() -> None:
        async for event in stream_of(service_over(engine), asking()):
            texts.append(event.text)

    with pytest.raises(EngineDead, match="the engine stopped"):
        asyncio.run(read())
    assert texts == list("abc")[:error_after]
    assert engine.aborted == ["r1"]


@table("is_empty", [True, False])
def test_an_engine_that_ends_too_early_has_failed(is_empty: bool) -> None:
    class Unfinished(FakeEngine):
        def _steps(self, request: EngineRequest) -> Any:
            return [] if is_empty else super()._steps(request)[:-1]

    with pytest.raises(EngineFailed, match="r1 before all its sequences were finished"):
        asyncio.run(service_over(Unfinished(saying("abc"))).generate(asking(n=2)))


def test_a_request_that_takes_too_long_is_aborted() -> None:
    engine = FakeEngine(saying("abc"), gate=asyncio.Event(), gate_after=2)
    service = service_over(engine, limits=ServiceLimits(request_timeout_s=0.05))
    texts: list[str] = []

    async def read() -> None:
        async for event in stream_of(service, asking()):
            texts.append(event.text)

    with pytest.raises(RequestTimeout, match=r"longer than the 0\.05 s"):
        asyncio.run(read())
    assert texts == ["a", "b"][: len(texts)]  # a busy machine may not get as far
    assert engine.aborted == ["r1"]


def test_a_time_that_is_over_while_nobody_reads_ends_the_request() -> None:
    engine = FakeEngine(saying("abc"), gate=asyncio.Event(), gate_after=1)
    service = service_over(engine, limits=ServiceLimits(request_timeout_s=0.01))

    async def read() -> None:
        async with aclosing(stream_of(service, asking())) as events:
            await anext(events)
            while engine.aborted != ["r1"]:  # noqa: ASYNC110 - a client that reads slowly
                await asyncio.sleep(0)
            await anext(events)

    with pytest.raises(RequestTimeout):
        asyncio.run(read())


def test_a_request_that_is_cancelled_within_its_time_is_cancelled() -> None:
    engine = FakeEngine(saying("abc"), gate=asyncio.Event(), gate_after=2)
    service = service_over(engine, limits=ServiceLimits(request_timeout_s=60.0))

    async def run() -> None:
        has_begun = asyncio.Event()

        async def read() -> None:
            async for _ in stream_of(service, asking()):
                has_begun.set()

        task = asyncio.create_task(read())
        await has_begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert engine.aborted == ["r1"]


def test_the_time_limit_covers_the_preparation() -> None:
    release = threading.Event()

    class Slow(ByteTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            release.wait()  # a very long prompt, in effect
            return super().encode(text, add_special_tokens=add_special_tokens)

    async def run() -> None:
        try:
            await service_over(engine, tokenizer=Slow(), limits=limits).generate(asking())
        finally:
            release.set()

    engine = FakeEngine(saying("abc"))
    limits = ServiceLimits(request_timeout_s=0.01, max_inline_chars=0)
    with pytest.raises(RequestTimeout):
        asyncio.run(run())
    assert engine.requests == []


def test_a_request_that_the_engine_ends_at_its_deadline_is_told_of_the_servers_limit() -> None:
    error = RequestTimeout("the request's deadline has passed")
    service = service_over(
        FakeEngine(saying("abc"), error=error, error_after=1), limits=ServiceLimits(request_timeout_s=60.0)
    )
    with pytest.raises(RequestTimeout, match="longer than the 60 s"):
        asyncio.run(service.generate(asking()))


def test_a_time_limit_that_is_not_met_changes_nothing() -> None:
    engine = FakeEngine(saying("abc"))
    service = service_over(engine, limits=ServiceLimits(request_timeout_s=60.0))
    assert asyncio.run(service.generate(asking())).sequences[0].text == "abc"
    assert engine.finished == ["r1"]


def test_an_aborted_sequence_gives_what_it_had() -> None:
    class Aborting(FakeEngine):
        def _steps(self, request: EngineRequest) -> Any:
            outputs = super()._steps(request)[:3]
            return [*outputs, msgspec.structs.replace(outputs[-1], token_ids=[], finish_reason=FinishReason.ABORT)]

    (sequence,) = asyncio.run(service_over(Aborting(saying("abEN"))).generate(asking(stop=("END",)))).sequences
    assert (sequence.text, sequence.finish_reason) == ("abE", FinishReason.ABORT)


def test_the_demo_models_tokenizer_carries_a_chat_from_messages_to_text() -> None:
    tokenizer = load_tokenizer(demo_model_dir())
    answer = "Tokyo 東京 🗼 is the capital.\n\nAsk more"
    end = tokenizer.token_to_id("<|im_end|>")
    assert end is not None
    engine = FakeEngine(
        lambda request, index: [*tokenizer.encode(answer), end],
        capabilities=replace(ABILITIES, vocab_size=tokenizer.vocab_size),
    )
    service = service_over(engine, tokenizer=tokenizer, chat_template=load_chat_template(tokenizer))
    chat = ChatPrompt(({"role": "user", "content": "Capital of Japan?"},))
    result = asyncio.run(service.generate(GenerationRequest("r1", chat)))
    assert "Capital of Japan?" in result.prompt.text
    assert (result.sequences[0].text, result.sequences[0].finish_reason) == (answer, FinishReason.EOS)
    stopped = asyncio.run(service.generate(GenerationRequest("r2", chat, stop=("\n\n",))))
    assert stopped.sequences[0].text == "Tokyo 東京 🗼 is the capital."
