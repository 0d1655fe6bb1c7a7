"""An engine's life: starting, being cancelled at any moment, deadlines, draining, and what it tells of itself."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from dragoman.engine.base import Engine
from dragoman.errors import Cancelled, EngineDead, Overloaded, QueueTimeout, RequestTimeout, UnsupportedFeature
from tests.contract.asking import Answer, asking, collect, collect_if, first_output, run, running, until_idle
from tests.contract.engines import MAX_MODEL_LEN, EngineUnderTest
from tests.support.patience import until
from tests.support.tables import table

LONG = 150


# --- start and end ----------------------------------------------------------------------------------------------------


def test_what_an_engine_can_do_is_known_before_it_starts_and_stays(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        engine = under_test.make(4)
        before = engine.capabilities
        await engine.start()
        assert engine.capabilities == before
        assert 0 < before.max_model_len <= MAX_MODEL_LEN
        await engine.shutdown(0.0)

    run(test())


def test_starting_twice_changes_nothing(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            answer = await collect(engine, asking(under_test))
            await engine.start()
            assert await collect(engine, asking(under_test)) == answer

    run(test())


def test_before_its_start_an_engine_refuses_requests_and_is_not_healthy(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        engine = under_test.make(4)
        assert not engine.health().is_alive
        with pytest.raises(EngineDead):
            await collect(engine, asking(under_test))
        await engine.start()
        assert engine.health().is_alive
        await collect(engine, asking(under_test))
        await engine.shutdown(0.0)

    run(test())


def test_after_its_shutdown_an_engine_refuses_everything_and_says_so(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        engine = under_test.make(4)
        await engine.start()
        await engine.shutdown(1.0)
        with pytest.raises(EngineDead):
            await collect(engine, asking(under_test))
        with pytest.raises(EngineDead):
            await engine.start()
        assert not engine.health().is_alive
        assert engine.health().reason
        await engine.shutdown(0.0)
        engine.stats()

    run(test())


def test_an_engine_that_never_started_can_be_shut_down(under_test: EngineUnderTest) -> None:
    run(under_test.make(4).shutdown(1.0))


def test_a_drain_lets_running_requests_finish_and_refuses_new_ones(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            expected = await collect(engine, asking(under_test, LONG))
        engine = under_test.make(4)
        await engine.start()
        async with aclosing(engine.generate(asking(under_test, LONG))) as outputs:
            token_ids = [*(await anext(aiter(outputs))).token_ids]
            ending = asyncio.create_task(engine.shutdown(60.0))
            await asyncio.sleep(0)
            with pytest.raises((Overloaded, EngineDead)):
                await collect(engine, asking(under_test))
            async for output in outputs:
                token_ids += output.token_ids
        await ending
        assert token_ids == expected.sequences[0].token_ids

    run(test())


def test_a_shutdown_without_patience_cancels_what_runs_and_what_waits(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        engine = under_test.make(1)
        await engine.start()
        tasks = [asyncio.create_task(collect(engine, asking(under_test, LONG))) for _ in range(4)]
        await until(lambda: engine.health().num_running > 0)
        await engine.shutdown(0.0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, Answer | Cancelled) for result in results)
        assert isinstance(results[-1], Cancelled)
        assert not engine.health().is_alive

    run(test())


# --- cancelling -------------------------------------------------------------------------------------------------------


async def goes_on(engine: Engine, under_test: EngineUnderTest, expected: Answer) -> None:
    """Nothing is left of what was cancelled, and the next request is answered as ever."""
    await until_idle(engine)
    assert await collect(engine, asking(under_test)) == expected


def test_what_is_never_read_never_runs(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            outputs = engine.generate(asking(under_test))
            await outputs.aclose()
            await outputs.aclose()
            assert engine.health().num_running == engine.health().num_waiting == 0
            assert engine.stats().num_generated_tokens in (0, None)

    run(test())


CASES: dict[str, dict[str, Any]] = {
    "one": {},
    "several": {"n": 3, "temperature": 1.0},
    "beams": {"num_beams": 3, "n": 2},
    "ranked": {"best_of": 3, "temperature": 1.0},
    "prompt": {"prompt_logprobs": 1},
}


@table("case", CASES)
def test_a_request_that_is_closed_before_its_first_output_leaves_nothing(
    case: str, under_test: EngineUnderTest
) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            expected = await collect(engine, asking(under_test))
            request = asking(under_test, LONG, **CASES[case])
            if case == "beams" and not engine.capabilities.beam_search:
                await collect_if(False, engine, request)
                return
            for num_turns in range(3):
                outputs = engine.generate(request)
                reading = first_output(outputs)
                for _ in range(num_turns):
                    await asyncio.sleep(0)
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                await outputs.aclose()
            await goes_on(engine, under_test, expected)

    run(test())


@table("num_read", [1, 5])
def test_a_request_that_is_closed_between_outputs_leaves_nothing(num_read: int, under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            expected = await collect(engine, asking(under_test))
            async with aclosing(engine.generate(asking(under_test, LONG))) as outputs:
                for _ in range(num_read):
                    await anext(aiter(outputs))
            await goes_on(engine, under_test, expected)

    run(test())


def test_no_more_tokens_are_generated_for_a_request_that_is_closed(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            request = asking(under_test, LONG, n=4, temperature=1.0)
            before = under_test.num_generated(engine)
            async with aclosing(engine.generate(request)) as outputs:
                await anext(aiter(outputs))
            await collect(engine, request)  # as long as the closed one would have gone on
            assert 4 * LONG <= under_test.num_generated(engine) - before < 2 * 4 * LONG

    run(test())


def test_a_request_that_is_closed_while_it_waits_changes_nothing_for_the_others(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test, max_num_seqs=1) as engine:
            expected = await collect(engine, asking(under_test, LONG))
            first = asyncio.create_task(collect(engine, asking(under_test, LONG)))
            await asyncio.sleep(0)
            waiting = engine.generate(asking(under_test, LONG))
            reading = first_output(waiting)
            await until(lambda: engine.health().num_waiting > 0 or first.done())
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await waiting.aclose()
            assert await first == expected

    run(test())


# --- deadlines --------------------------------------------------------------------------------------------------------


def test_a_request_past_its_deadline_is_ended_and_others_are_not(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            expected = await collect(engine, asking(under_test, LONG))
            late, punctual = await asyncio.gather(
                collect(engine, asking(under_test, LONG, deadline_s=time.time() + 0.001)),
                collect(engine, asking(under_test, LONG, deadline_s=time.time() + 3600)),
                return_exceptions=True,
            )
            assert isinstance(late, RequestTimeout)
            assert punctual == expected
            with pytest.raises(RequestTimeout):
                await collect(engine, asking(under_test, deadline_s=time.time() - 1))

    run(test())


def test_who_has_not_begun_in_time_is_given_up_where_the_engine_tells(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            late = asking(under_test, 5, start_by_s=time.time() - 1, caller="somebody")
            if not engine.capabilities.queue_timeout:
                with pytest.raises(UnsupportedFeature, match="queue_timeout"):
                    await collect(engine, late)
                return
            with pytest.raises(QueueTimeout):
                await collect(engine, late)
            in_time = msgspec.structs.replace(late, start_by_s=time.time() + 3600)
            assert len((await collect(engine, in_time)).tokens[0]) == 5

    run(test())


def test_a_deadline_also_ends_those_who_wait(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test, max_num_seqs=1) as engine:
            expected = await collect(engine, asking(under_test, LONG))
            first = asyncio.create_task(collect(engine, asking(under_test, LONG)))
            await asyncio.sleep(0)
            with pytest.raises(RequestTimeout):
                await collect(engine, asking(under_test, LONG, deadline_s=time.time() + 0.001))
            assert await first == expected

    run(test())


# --- what it tells ----------------------------------------------------------------------------------------------------


def test_totals_add_up(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            before = engine.stats()
            scored = {"prompt_logprobs": 0} if engine.capabilities.prompt_logprobs else {}
            answers = await asyncio.gather(
                collect(engine, asking(under_test, 5)),
                collect(engine, asking(under_test, 9, n=2, temperature=1.0)),
                collect(engine, asking(under_test, 0, **scored)),
            )
            after = engine.stats()
            num_generated = sum(len(tokens) for answer in answers for tokens in answer.tokens)
            num_cached = sum(answer.outputs[0].num_cached_tokens for answer in answers)
            num_drafts = sum(output.num_draft_tokens for answer in answers for output in answer.outputs)
            num_accepted = sum(output.num_accepted_tokens for answer in answers for output in answer.outputs)
            expected = {
                "num_generated_tokens": num_generated,
                "num_prompt_tokens": 3 * len(under_test.prompt) - num_cached,
                "num_draft_tokens": num_drafts,
                "num_accepted_tokens": num_accepted,
                "num_prefix_hits": num_cached,
            }
            for name, count in expected.items():
                told = getattr(after, name)
                assert told is None or told - (getattr(before, name) or 0) == count, name

    run(test())


def test_drafts_are_counted_where_the_engine_speculates_and_nowhere_else(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test) as engine:
            answer = await collect(engine, asking(under_test, LONG))
            num_drafts = sum(output.num_draft_tokens for output in answer.outputs)
            num_accepted = sum(output.num_accepted_tokens for output in answer.outputs)
            assert (num_drafts > 0) == engine.capabilities.speculative
            assert 0 <= num_accepted <= num_drafts
            assert all(output.num_accepted_tokens <= len(output.token_ids) for output in answer.outputs)

    run(test())


def test_health_shows_who_runs_and_who_waits(under_test: EngineUnderTest) -> None:
    async def test() -> None:
        async with running(under_test, max_num_seqs=1) as engine:
            tasks = [asyncio.create_task(collect(engine, asking(under_test, LONG))) for _ in range(3)]
            await until(lambda: engine.health().num_running + engine.health().num_waiting == 3 or tasks[0].done())
            assert not tasks[0].done()
            assert engine.health().num_running <= 1
            health = engine.health()
            assert health.num_used_blocks <= health.num_blocks
            await asyncio.gather(*tasks)

    run(test())
