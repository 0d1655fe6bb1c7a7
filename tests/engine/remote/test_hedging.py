"""Hedging: a second upstream is asked when the first output does not come, and only then."""

from __future__ import annotations

import asyncio
import time

import pytest

from dragoman.engine.remote.fleet import Fleet, Route
from dragoman.engine.remote.profile import Profile
from dragoman.engine.remote.upstream import Upstream
from dragoman.errors import EngineFailed, InvalidRequest
from tests.contract.asking import first_output, run
from tests.engine.remote.asking import outputs, remote, request, text
from tests.support.fake_upstream import FakeUpstream
from tests.support.patience import until

SAID = "one two three"
SOON = {"hedge_after_ms": 1.0}


def test_the_quicker_of_two_answers_and_the_other_one_is_told_to_stop() -> None:
    slow, quick = FakeUpstream(hangs_after=None), FakeUpstream()

    async def test() -> None:
        async with remote(slow, quick, **SOON) as engine:
            slow.hangs_after = 0
            while not slow.bodies:  # until the slow one was the first to be asked
                assert await text(engine, request()) == SAID
            await until(lambda: slow.num_running == 0)
            assert await text(engine, request()) == SAID
            stats = engine.stats()
            assert stats.num_hedges == stats.num_hedges_won == len(slow.bodies)
            await until(lambda: [one.num_outstanding for one in engine.health().upstreams] == [0, 0])
            assert all(one.is_healthy for one in engine.health().upstreams)

    run(test())


def test_nobody_else_is_asked_after_the_first_output() -> None:
    first, second = FakeUpstream(), FakeUpstream()

    async def test() -> None:
        async with remote(first, second, hedge_after_ms=200.0) as engine:
            first.hangs_after = second.hangs_after = 1
            stream, begin_s = engine.generate(request()), time.monotonic()
            await first_output(stream)
            num_hedges = engine.stats().num_hedges or 0
            assert num_hedges == 0 or time.monotonic() > begin_s + 0.2, "a busy machine may be late"
            rest = asyncio.ensure_future(anext(stream))
            await asyncio.wait([rest], timeout=0.3)
            assert not rest.done()
            assert len(first.bodies) + len(second.bodies) == 1 + num_hedges
            assert engine.stats().num_hedges == num_hedges
            rest.cancel()
            await asyncio.gather(rest, return_exceptions=True)
            await stream.aclose()

    run(test())


def test_it_is_off_unless_it_was_asked_for() -> None:
    first, second = FakeUpstream(), FakeUpstream()

    async def test() -> None:
        async with remote(first, second, upstream_timeout=0.2) as engine:
            first.hangs_after = second.hangs_after = 0
            with pytest.raises(EngineFailed):
                await outputs(engine, request())
            assert engine.stats().num_hedges == 0

    run(test())


def test_a_client_that_leaves_ends_both() -> None:
    first, second = FakeUpstream(), FakeUpstream()

    async def test() -> None:
        async with remote(first, second, **SOON) as engine:
            first.hangs_after = second.hangs_after = 0
            stream = engine.generate(request())
            reading = first_output(stream)
            await until(lambda: first.num_running == second.num_running == 1)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await stream.aclose()
            await until(lambda: first.num_running == second.num_running == 0)

    run(test())


def test_what_a_second_server_refuses_is_the_clients_error_and_both_fail_only_together() -> None:
    first, second = FakeUpstream(), FakeUpstream()

    async def test() -> None:
        async with remote(first, second, **SOON) as engine:
            first.status = second.status = 400
            with pytest.raises(InvalidRequest, match="does not want to"):
                await outputs(engine, request())
            first.status = second.status = 200
            first.dies_after, second.dies_after = 0, 0
            with pytest.raises(EngineFailed):
                await outputs(engine, request())
            first.dies_after = second.dies_after = None
            assert await text(engine, request()) == SAID

    run(test())


def test_a_client_that_leaves_while_the_slower_one_ends_loses_no_answer() -> None:
    """Whoever loses it leaves its connection open, and the server counted as busy, for ever."""
    slow, quick = Upstream("http://slow", 1.0, Profile("m")), Upstream("http://quick", 1.0, Profile("m"))

    async def test() -> None:
        is_ending, may_end = asyncio.Event(), asyncio.Event()
        dropped: list[str] = []

        async def ask(upstream: Upstream) -> str:
            if upstream is slow:
                try:
                    await asyncio.Event().wait()
                finally:
                    is_ending.set()
                    await may_end.wait()
            return "an answer"

        async def greet(upstream: Upstream) -> None:
            """They are known."""

        fleet = Fleet([slow, quick], None, greet, hedge_after_s=0.0)
        asking = asyncio.create_task(fleet.first_answer(Route(b""), ask, dropped.append))
        await is_ending.wait()
        asking.cancel()
        may_end.set()
        (got,) = await asyncio.gather(asking, return_exceptions=True)
        assert [got, *dropped].count("an answer") == 1

    run(test())


def test_with_one_server_there_is_nobody_to_ask() -> None:
    upstream = FakeUpstream()

    async def test() -> None:
        async with remote(upstream, upstream_timeout=0.3, **SOON) as engine:
            upstream.hangs_after = 0
            with pytest.raises(EngineFailed):
                await outputs(engine, request())
            assert engine.stats().num_hedges == 0
            assert len(upstream.bodies) == 1

    run(test())
