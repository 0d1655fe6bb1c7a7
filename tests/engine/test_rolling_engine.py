"""The engine on its thread, from event loops: delivery, aborting, failure, death, shutdown."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from dragoman.engine.base import DEATHS, Engine
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.engine import RollingEngine
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.errors import Cancelled, CapacityError, EngineDead, EngineFailed, Overloaded, ServerError
from dragoman.types import EngineOutput, EngineRequest, FinishReason
from tests.engine.fake_runner import FakeRunner
from tests.engine.forward_gate import ForwardGate
from tests.engine.naive import make_request, naive_sequence
from tests.support.patience import until

VOCAB_SIZE = 24
TIMEOUT_S = 30.0


def gated_runner(gate: ForwardGate) -> FakeRunner:
    return FakeRunner(vocab_size=VOCAB_SIZE, before_forward=gate)


@asynccontextmanager
async def running_engine(runner: FakeRunner | None = None, **config: Any) -> AsyncIterator[RollingEngine]:
    engine = RollingEngine(runner or FakeRunner(vocab_size=VOCAB_SIZE), Sampler(VOCAB_SIZE), RollingConfig(**config))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.shutdown(drain_s=0.0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run an async test to its end, or fail."""

    async def bounded() -> None:
        await asyncio.wait_for(test(), TIMEOUT_S)

    asyncio.run(bounded())


async def collect(engine: Engine, request: EngineRequest) -> list[EngineOutput]:
    return [output async for output in engine.generate(request)]


async def tokens_of(engine: Engine, request: EngineRequest) -> list[int]:
    return [token_id for output in await collect(engine, request) for token_id in output.token_ids]


def token_ids_by_sequence(outputs: list[EngineOutput]) -> dict[int, list[int]]:
    ids: dict[int, list[int]] = {}
    for output in outputs:
        ids.setdefault(output.index, []).extend(output.token_ids)
    return ids


def unending(seed_token: int = 1, max_tokens: int = 200) -> EngineRequest:
    return make_request([seed_token, 2, 3], max_tokens=max_tokens, ignore_eos=True)


def expected(request: EngineRequest) -> list[int]:
    return naive_sequence(request, 0, VOCAB_SIZE).token_ids


def test_concurrent_requests_get_their_own_tokens() -> None:
    async def test() -> None:
        async with running_engine() as engine:
            requests = [make_request([key, 5, 6], max_tokens=12, name=f"request {key}") for key in range(12)]
            results = await asyncio.gather(*(tokens_of(engine, request) for request in requests))
            assert results == [expected(request) for request in requests]
            assert engine.stats().num_generated_tokens == sum(map(len, results))

    run(test)


def test_requests_with_the_same_id_do_not_meet() -> None:
    async def test() -> None:
        async with running_engine() as engine:
            requests = [make_request([key, 5], max_tokens=10, name="same") for key in range(4)]
            results = await asyncio.gather(*(tokens_of(engine, request) for request in requests))
            assert results == [expected(request) for request in requests]

    run(test)


def test_every_sequence_of_a_request_is_delivered_to_its_end() -> None:
    async def test() -> None:
        async with running_engine() as engine:
            request = make_request([1, 2, 3], max_tokens=6, n=3, temperature=1.0)
            outputs = await collect(engine, request)
            for index in range(3):
                own = [output for output in outputs if output.index == index]
                assert [token for output in own for token in output.token_ids] == naive_sequence(
                    request, index, VOCAB_SIZE
                ).token_ids
                assert own[-1].finish_reason is not None

    run(test)


def test_an_idle_engine_wakes_up_for_the_next_request() -> None:
    async def test() -> None:
        async with running_engine() as engine:
            for key in range(3):
                await until(lambda: engine.health().num_running == 0)
                assert await tokens_of(engine, make_request([key, 1])) == expected(make_request([key, 1]))

    run(test)


def test_outputs_of_one_step_come_in_one_hop() -> None:
    async def test() -> None:
        gate = ForwardGate()
        async with running_engine(gated_runner(gate)) as engine:
            loop = asyncio.get_running_loop()
            tasks = [asyncio.create_task(collect(engine, unending(key, max_tokens=4))) for key in range(8)]
            await gate.reached()  # the first step may hold a part of them only; all have been handed in
            hops = 0
            original = loop.call_soon_threadsafe

            def counted(*args: Any, **kwargs: Any) -> asyncio.Handle:
                nonlocal hops
                hops += threading.current_thread().name == "dragoman-engine"
                return original(*args, **kwargs)

            loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
            gate.open()
            outputs = await asyncio.gather(*tasks)
            assert sum(map(len, outputs)) == 32
            assert 0 < hops <= (engine.stats().num_steps or 0) <= 5

    run(test)


def test_closing_the_iterator_frees_the_blocks_within_a_step() -> None:
    async def test() -> None:
        gate = ForwardGate(num_free=1)
        async with running_engine(gated_runner(gate)) as engine:
            outputs = engine.generate(unending())
            await anext(outputs)
            assert engine.health().num_running == 1
            assert engine.health().num_used_blocks > 0
            await outputs.aclose()
            gate.open()
            await until(lambda: engine.health().num_used_blocks == 0)
            assert engine.health().num_running == 0
            assert (engine.stats().num_generated_tokens or 0) <= 2

    run(test)


def test_cancelling_the_reading_task_frees_the_blocks() -> None:
    async def test() -> None:
        gate = ForwardGate(num_free=1)
        async with running_engine(gated_runner(gate)) as engine:
            task = asyncio.create_task(collect(engine, unending()))
            await gate.reached()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert engine.health().num_used_blocks > 0
            gate.open()
            await until(lambda: engine.health().num_used_blocks == 0)

    run(test)


def test_outputs_are_delivered_as_they_are_read() -> None:
    async def test() -> None:
        async with running_engine() as engine:
            requests = [make_request([key, 1], max_tokens=9, n=2) for key in range(3)]
            delivered: list[list[EngineOutput]] = [[] for _ in requests]

            def keep(key: int, output: EngineOutput) -> bool:
                delivered[key].append(output)
                return True

            await asyncio.gather(*(engine.deliver(one, partial(keep, key)) for key, one in enumerate(requests)))
            for request, outputs in zip(requests, delivered, strict=True):
                assert token_ids_by_sequence(outputs) == token_ids_by_sequence(await collect(engine, request))

    run(test)


def test_a_request_whose_outputs_are_not_wanted_or_not_bearable_ends_alone() -> None:
    async def test() -> None:
        class Panic(BaseException):
            """As libraries written in Rust raise it."""

        def note(has_come: asyncio.Event, _output: EngineOutput) -> bool:
            has_come.set()
            return True

        def fails(_output: EngineOutput) -> bool:
            raise Panic("a text that nobody can read")

        async with running_engine() as engine:
            beside = asyncio.create_task(tokens_of(engine, unending(5)))
            await engine.deliver(unending(1), lambda output: False)
            with pytest.raises(Panic):
                await engine.deliver(unending(2), fails)
            has_come = asyncio.Event()
            leaving = asyncio.create_task(engine.deliver(unending(3), partial(note, has_come)))
            await has_come.wait()
            leaving.cancel()
            assert isinstance((await asyncio.gather(leaving, return_exceptions=True))[0], asyncio.CancelledError)
            assert await beside == expected(unending(5))
            await until(lambda: engine.health().num_used_blocks == 0)
            assert (engine.stats().num_generated_tokens or 0) < 600

    run(test)


def test_closing_a_waiting_request_takes_it_out_of_the_queue() -> None:
    async def test() -> None:
        gate = ForwardGate()
        async with running_engine(gated_runner(gate), max_num_seqs=1) as engine:
            first, second = (asyncio.create_task(tokens_of(engine, unending(key, max_tokens=9))) for key in range(2))
            await gate.reached()
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)  # its abort is in the inbox before the engine goes on
            gate.open()
            assert await first == expected(unending(0, max_tokens=9))
            await until(lambda: engine.health().num_waiting == 0)
            assert engine.stats().num_generated_tokens == 9

    run(test)


def test_a_request_that_can_never_fit_is_refused_and_others_go_on() -> None:
    async def test() -> None:
        async with running_engine(FakeRunner(num_blocks=4, block_size=4, vocab_size=VOCAB_SIZE)) as engine:
            with pytest.raises(CapacityError, match="17 tokens, the KV cache holds 16"):
                await collect(engine, make_request([1] * 10, max_tokens=7))
            assert engine.capabilities.max_model_len == 16
            assert await tokens_of(engine, make_request([1, 2])) == expected(make_request([1, 2]))

    run(test)


def test_a_failing_forward_fails_its_batch_and_the_engine_goes_on() -> None:
    async def test() -> None:
        def before_forward(_batch: ForwardBatch) -> None:
            if runner.num_forwards == 2:
                raise MemoryError("no scratch memory")

        runner = FakeRunner(vocab_size=VOCAB_SIZE, before_forward=before_forward)
        async with running_engine(runner) as engine:
            with pytest.raises(EngineFailed, match="MemoryError: no scratch memory"):
                await collect(engine, unending())
            assert engine.health().is_alive
            assert await tokens_of(engine, make_request([1, 2])) == expected(make_request([1, 2]))

    run(test)


class DyingRunner(FakeRunner):
    """Fails in a way that no engine should try to survive."""

    def forward(self, batch: ForwardBatch) -> Any:
        if self.num_forwards == 3:
            raise SystemExit("the process is being torn down")
        return super().forward(batch)


def test_when_the_thread_dies_everybody_is_told_and_health_says_why() -> None:
    async def test() -> None:
        async with running_engine(DyingRunner(vocab_size=VOCAB_SIZE), max_num_seqs=1) as engine:
            has_died = threading.Event()
            DEATHS.listen(has_died.set)
            tasks = [asyncio.create_task(collect(engine, unending(key))) for key in range(3)]
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(result) for result in results] == [EngineDead] * 3
            health = engine.health()
            assert not health.is_alive
            assert "SystemExit: the process is being torn down" in health.reason
            assert await asyncio.to_thread(has_died.wait, TIMEOUT_S)
            DEATHS.ignore(has_died.set)
            with pytest.raises(EngineDead, match="torn down"):
                await collect(engine, unending())
            with pytest.raises(EngineDead):
                await engine.start()

    run(test)


def test_an_engine_that_was_not_started_takes_no_request() -> None:
    async def test() -> None:
        engine = RollingEngine(FakeRunner(vocab_size=VOCAB_SIZE), Sampler(VOCAB_SIZE))
        assert not engine.health().is_alive
        with pytest.raises(EngineDead, match="not started"):
            await collect(engine, unending())
        await engine.shutdown(drain_s=0.0)

    run(test)


def test_starting_twice_is_starting_once() -> None:
    async def test() -> None:
        async with running_engine() as engine:
            await engine.start()
            names = [thread.name for thread in threading.enumerate()]
            assert names.count("dragoman-engine") == 1

    run(test)


def test_shutdown_lets_running_requests_finish_and_refuses_new_ones() -> None:
    async def test() -> None:
        gate = ForwardGate()
        runner = gated_runner(gate)
        async with running_engine(runner) as engine:
            request = unending(max_tokens=20)
            task = asyncio.create_task(tokens_of(engine, request))
            await gate.reached()
            shutdown = asyncio.create_task(engine.shutdown(drain_s=TIMEOUT_S))
            await asyncio.sleep(0)
            with pytest.raises(Overloaded, match="shutting down"):
                await collect(engine, unending())
            gate.open()
            assert await task == expected(request)
            await shutdown
            assert runner.is_closed
            assert not engine.health().is_alive
            with pytest.raises(EngineDead, match="shut down"):
                await collect(engine, unending())

    run(test)


def test_the_event_loop_goes_on_while_a_large_cache_is_given_back() -> None:
    class LargeRunner(FakeRunner):
        may_close = threading.Event()

        def close(self) -> None:
            assert self.may_close.wait(TIMEOUT_S)
            super().close()

    async def test() -> None:
        runner = LargeRunner(vocab_size=VOCAB_SIZE)
        async with running_engine(runner) as engine:
            shutdown = asyncio.create_task(engine.shutdown(drain_s=0.0))
            await until(lambda: not engine.health().is_alive)
            assert not runner.is_closed
            runner.may_close.set()
            await shutdown
            assert runner.is_closed

    run(test)


def test_shutdown_cancels_what_does_not_finish_in_time() -> None:
    async def test() -> None:
        gate = ForwardGate(num_free=1)
        runner = gated_runner(gate)
        async with running_engine(runner) as engine:
            outputs = engine.generate(unending())
            await anext(outputs)
            waiting = asyncio.create_task(collect(engine, unending(2)))
            await gate.reached()
            shutdown = asyncio.create_task(engine.shutdown(drain_s=0.0))
            await until(waiting.done)
            gate.open()
            await shutdown
            with pytest.raises(Cancelled, match="shutting down"):
                await waiting
            with pytest.raises(Cancelled):
                _ = [output async for output in outputs]
            assert runner.is_closed
            assert "dragoman-engine" not in [thread.name for thread in threading.enumerate()]

    run(test)


def test_one_engine_serves_several_event_loops() -> None:
    results: dict[int, list[int]] = {}

    async def test() -> None:
        async with running_engine() as engine:

            def other_loop(key: int) -> None:
                results[key] = asyncio.run(tokens_of(engine, unending(key, max_tokens=20)))

            await asyncio.gather(*(asyncio.to_thread(other_loop, key) for key in range(3)))

    run(test)
    assert results == {key: expected(unending(key, max_tokens=20)) for key in range(3)}


def test_requests_of_a_loop_that_was_closed_are_dropped() -> None:
    async def test() -> None:
        gate = ForwardGate(num_free=1)
        async with running_engine(gated_runner(gate)) as engine:
            outputs = engine.generate(unending())
            loop = asyncio.new_event_loop()

            def read_one_and_leave() -> None:
                loop.run_until_complete(anext(outputs))
                loop.close()

            await asyncio.to_thread(read_one_and_leave)
            gate.open()
            request = make_request([4, 5], max_tokens=5)
            assert await tokens_of(engine, request) == expected(request)
            await until(lambda: engine.health().num_used_blocks == 0)
            assert (engine.stats().num_generated_tokens or 0) < 200
            with pytest.raises(RuntimeError, match="loop is closed"):
                await outputs.aclose()  # they belong to that loop

    run(test)


def test_a_stream_never_ends_without_an_answer_when_the_engine_dies_at_any_step() -> None:
    async def test(death_step: int) -> None:
        def before_forward(_batch: ForwardBatch) -> None:
            if runner.num_forwards == death_step:
                raise SystemExit("torn down")

        runner = FakeRunner(vocab_size=VOCAB_SIZE, before_forward=before_forward)
        async with running_engine(runner) as engine:
            requests = [make_request([key, 1], max_tokens=3) for key in range(4)]
            results = await asyncio.gather(*(collect(engine, request) for request in requests), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    assert isinstance(result, ServerError)
                else:
                    assert result[-1].finish_reason in (FinishReason.LENGTH, FinishReason.EOS)

    for death_step in range(1, 6):

        async def one(step: int = death_step) -> None:
            await test(step)

        run(one)
