"""What happens to requests when upstreams fail: another one, or one error, and never a wrong answer."""

from __future__ import annotations

import asyncio
import time

import pytest

from dragoman.engine.base import Engine, check_request
from dragoman.engine.remote import fleet
from dragoman.errors import (
    CapacityError,
    EngineDead,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    RequestTimeout,
    ServerError,
    Unavailable,
    UnsupportedFeature,
)
from dragoman.types import EngineRequest
from tests.contract.asking import first_output, run
from tests.engine.remote.asking import PROMPT, TOKENIZER, outputs, remote, request, text
from tests.support.fake_upstream import FakeUpstream
from tests.support.patience import until

SAID = "one two three"


def healthy(engine: Engine) -> list[bool]:
    return [upstream.is_healthy for upstream in engine.health().upstreams]


def num_asked(upstream: FakeUpstream) -> int:
    """Requests without those that the engine asks for itself."""
    return sum(body["prompt"] == PROMPT for body in upstream.bodies)


def test_an_upstream_that_dies_before_the_first_token_is_replaced_by_another() -> None:
    first, second = FakeUpstream(), FakeUpstream()

    async def test() -> None:
        async with remote(first, second) as engine:
            first.dies_after = second.dies_after = 0
            first_down = request()
            # whoever is asked first dies, and the other one is well
            reading = first_output(engine.generate(first_down))
            with pytest.raises((EngineFailed, Unavailable)):
                await reading
            assert len(first.bodies) == len(second.bodies) == 1
            first.dies_after = second.dies_after = None
            await until(lambda: healthy(engine) == [True, True])
            first.dies_after = 0
            first.forget()
            second.forget()
            assert await text(engine, request()) == SAID
            assert len(second.bodies) == 1

    run(test())


def test_an_upstream_that_dies_in_the_middle_fails_that_request_alone() -> None:
    upstream, other = FakeUpstream(), FakeUpstream()

    async def test() -> None:
        async with remote(upstream, other) as engine:
            upstream.hangs_after = other.hangs_after = 2
            good = asyncio.create_task(text(engine, request()))
            await until(lambda: upstream.num_running + other.num_running == 1)
            holder = upstream if upstream.num_running else other
            spare = other if holder is upstream else upstream
            spare.hangs_after, spare.dies_after = None, 2
            with pytest.raises(EngineFailed):
                await outputs(engine, request())
            assert not good.done()
            assert len(holder.bodies) == 1, "what has begun is not asked for again"
            good.cancel()
            await asyncio.gather(good, return_exceptions=True)

    run(test())


def test_a_server_that_is_gone_gets_nothing_until_it_is_back() -> None:
    first, second = FakeUpstream(), FakeUpstream()

    async def test() -> None:
        async with remote(first, second) as engine:
            await first.stop()
            assert [await text(engine, request()) for _ in range(3)] == [SAID] * 3
            assert healthy(engine) == [False, True]
            await first.start()
            await until(lambda: healthy(engine) == [True, True])
            assert await text(engine, request()) == SAID

    run(test())


def test_without_any_server_requests_are_refused_and_the_engine_says_why() -> None:
    upstream = FakeUpstream()

    async def test() -> None:
        async with remote(upstream) as engine:
            await upstream.stop()
            for _ in range(2):
                with pytest.raises(Unavailable, match=upstream.url):
                    await outputs(engine, request())
            assert not engine.health().is_alive
            assert upstream.url in engine.health().reason
            await upstream.start()
            await until(lambda: engine.health().is_alive)
            assert await text(engine, request()) == SAID

    run(test())


def test_a_silent_upstream_is_given_up_before_the_first_token_and_between_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "FIRST_RETRY_S", 60.0)  # the engine asks for no token of its own meanwhile
    slow, quick = FakeUpstream(), FakeUpstream()

    async def test() -> None:
        async with remote(slow, quick, upstream_timeout=0.2) as engine:
            slow.hangs_after = quick.hangs_after = 0
            with pytest.raises(EngineFailed, match=r"upstream_timeout=0.2"):
                await outputs(engine, request())
            assert num_asked(slow) == num_asked(quick) == 1, "each was tried"
            quick.hangs_after = slow.hangs_after = 1
            with pytest.raises(EngineFailed, match=r"upstream_timeout=0.2"):
                await outputs(engine, request())
            assert num_asked(slow) + num_asked(quick) == 3, "only one was"
            await until(lambda: slow.num_running == quick.num_running == 0)

    run(test())


def test_a_deadline_reaches_the_upstream() -> None:
    upstream = FakeUpstream()

    async def test() -> None:
        async with remote(upstream) as engine:
            upstream.hangs_after = 1
            with pytest.raises(RequestTimeout):
                await outputs(engine, request(deadline_s=time.time() + 0.2))
            await until(lambda: upstream.num_running == 0)

    run(test())


@pytest.mark.parametrize("hangs_after", [0, 1])
def test_closing_the_outputs_closes_the_connection(hangs_after: int) -> None:
    upstream = FakeUpstream()

    async def test() -> None:
        async with remote(upstream) as engine:
            upstream.hangs_after = hangs_after
            stream = engine.generate(request())
            reading = first_output(stream)
            await until(lambda: upstream.num_running == 1)
            if hangs_after:
                await reading
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await stream.aclose()
            await until(lambda: upstream.num_running == 0)
            assert engine.health().upstreams[0].num_outstanding == 0
            upstream.hangs_after = None
            assert await text(engine, request()) == SAID

    run(test())


@pytest.mark.parametrize("status", [400, 413, 422])
def test_what_an_upstream_finds_wrong_is_the_clients_error_and_tried_once(status: int) -> None:
    first, second = FakeUpstream(), FakeUpstream()

    async def test() -> None:
        async with remote(first, second) as engine:
            for upstream in (first, second):
                upstream.status = status
                upstream.error = {"error": {"message": "top_p is odd", "param": "top_p"}}
            with pytest.raises(InvalidRequest, match="top_p is odd") as caught:
                await outputs(engine, request())
            assert caught.value.param == "top_p"
            assert len(first.bodies) + len(second.bodies) == 1
            assert healthy(engine) == [True, True]

    run(test())


def test_a_context_that_is_too_long_for_the_upstream_is_told_as_such() -> None:
    upstream = FakeUpstream()

    async def test() -> None:
        async with remote(upstream) as engine:
            upstream.status = 400
            upstream.error = {"error": {"message": "too long", "code": "context_length_exceeded"}}
            with pytest.raises(CapacityError, match="too long"):
                await outputs(engine, request())

    run(test())


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_upstream_is_passed_by_and_all_busy_ones_are_told(status: int) -> None:
    first, second = FakeUpstream(), FakeUpstream()

    async def test() -> None:
        async with remote(first, second) as engine:
            first.status = status
            for _ in range(2):
                assert await text(engine, request()) == SAID
            second.status = status
            with pytest.raises(Overloaded) as caught:
                await outputs(engine, request())
            assert caught.value.retry_after_s == 7
            assert healthy(engine) == [True, True], "they work, they are only busy"

    run(test())


def test_a_request_that_breaks_servers_breaks_three_at_most_and_no_other_request() -> None:
    upstreams = [FakeUpstream() for _ in range(5)]

    async def test() -> None:
        async with remote(*upstreams) as engine:
            for upstream in upstreams:
                upstream.status = 500
            with pytest.raises(EngineFailed, match="it does not want to"):
                await outputs(engine, request())
            assert sum(len(upstream.bodies) for upstream in upstreams) == 3
            for upstream in upstreams:
                upstream.status = 200
            assert await text(engine, request()) == SAID

    run(test())


def test_who_is_over_the_limit_waits_and_is_sent_later() -> None:
    upstream = FakeUpstream()

    async def test() -> None:
        async with remote(upstream, max_num_seqs=2) as engine:
            upstream.hangs_after = 1
            tasks = [asyncio.create_task(text(engine, request())) for _ in range(3)]
            await until(lambda: upstream.num_running == 2)
            health = engine.health()
            assert (health.num_running, health.num_waiting) == (2, 1)
            assert health.upstreams[0].num_outstanding == 2
            upstream.hangs_after = None
            tasks[0].cancel()
            tasks[1].cancel()
            assert await tasks[2] == SAID
            await asyncio.gather(*tasks, return_exceptions=True)

    run(test())


def test_what_would_be_refused_is_told_without_asking_anybody() -> None:
    upstream = FakeUpstream()
    letters = tuple(token for letter in "deep" for token in TOKENIZER.encode(letter))
    cases: dict[type[ServerError], EngineRequest] = {
        UnsupportedFeature: request(top_k=4),
        CapacityError: request(max_tokens=64),
        InvalidRequest: request(prompt_ids=letters),  # no text stands for them
    }

    async def test() -> None:
        async with remote(upstream) as engine:
            check_request(engine, request())
            for kind, refused in cases.items():
                with pytest.raises(kind) as told:
                    check_request(engine, refused)
                with pytest.raises(kind) as raised:
                    await outputs(engine, refused)
                assert str(told.value) == str(raised.value)
            assert not upstream.bodies
            await upstream.stop()
            with pytest.raises(Unavailable):
                await outputs(engine, request())
            with pytest.raises(Unavailable, match="cannot be reached"):
                check_request(engine, request())
        with pytest.raises(EngineDead):
            check_request(engine, request())

    run(test())
