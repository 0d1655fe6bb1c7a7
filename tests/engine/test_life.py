"""Requests on the event loop: which outputs are passed on, and with which error a request ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from dragoman.coroutines import together
from dragoman.engine.life import OnLoop, Put
from dragoman.errors import Cancelled, EngineDead, EngineFailed, RequestTimeout
from dragoman.types import EngineOutput, EngineRequest, FinishReason, SamplingParams


def request(n: int = 1) -> EngineRequest:
    return EngineRequest("r", (1, 2), SamplingParams(n=n), 8, 5)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


async def put_at_once(put: Put) -> None:
    """Two sequences whose outputs come in the same turn of the event loop."""
    has_come = asyncio.Event()

    async def draw(index: int) -> None:
        await has_come.wait()
        put(EngineOutput("r", index, [7]))
        await asyncio.Event().wait()

    asyncio.get_running_loop().call_later(0.01, has_come.set)
    await together(draw(index) for index in range(2))


def test_after_the_last_wanted_output_no_other_sequence_passes_one_on() -> None:
    async def test() -> None:
        taken: list[int] = []

        def take(output: EngineOutput) -> bool:
            taken.append(output.index)
            return False

        life = OnLoop()
        await life.run(request(n=2), take, put_at_once)
        assert taken == [0]
        assert (life.num_tokens, life.num_requests) == (1, 0)

    run(test())


def test_the_first_error_of_the_taker_is_raised_and_nothing_more_is_taken() -> None:
    async def test() -> None:
        taken: list[int] = []

        def take(output: EngineOutput) -> bool:
            taken.append(output.index)
            raise LookupError(f"sequence {output.index}")

        with pytest.raises(LookupError, match="sequence 0"):
            await OnLoop().run(request(n=2), take, put_at_once)
        assert taken == [0]

    run(test())


def test_a_taker_that_wants_no_more_gets_the_end_of_its_last_sequence() -> None:
    async def test() -> None:
        has_ended = False

        async def work(put: Put) -> None:
            nonlocal has_ended
            put(EngineOutput("r", 0, [7], FinishReason.LENGTH))
            has_ended = True

        await OnLoop().run(request(), lambda output: False, work)
        assert has_ended, "what follows the last output, such as an upstream's counts, is read as ever"

    run(test())


async def end_otherwise(put: Put) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise EngineFailed("the connection was cut") from None


def test_an_interrupted_request_has_the_error_of_the_interruption_however_its_work_ends() -> None:
    async def test() -> None:
        life = OnLoop()
        with pytest.raises(RequestTimeout):
            await life.run(request(), lambda output: True, end_otherwise, time.time() + 0.01)
        running = asyncio.create_task(life.run(request(), lambda output: True, end_otherwise))
        await asyncio.sleep(0)
        life.stop(EngineDead, "the cluster is gone")
        with pytest.raises(EngineDead, match="the cluster is gone"):
            await running
        running = asyncio.create_task(life.run(request(), lambda output: True, end_otherwise))
        await asyncio.sleep(0)
        await life.finish(0.0)
        with pytest.raises(Cancelled):
            await running

    run(test())
