"""Which upstreams get requests: those that list the model as it was and answer, and the others once they do again."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.engine.base import Engine
from dragoman.engine.remote import fleet
from dragoman.errors import EngineFailed, Unavailable
from tests.contract.asking import run
from tests.engine.remote.asking import PROMPT, outputs, remote, request, text
from tests.support.fake_upstream import FakeUpstream
from tests.support.patience import until

SAID = "one two three"


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "CHECK_EVERY_S", 0.01)
    monkeypatch.setattr(fleet, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(fleet, "LAST_RETRY_S", 0.05)


def healthy(engine: Engine) -> list[bool]:
    return [upstream.is_healthy for upstream in engine.health().upstreams]


def of_clients(upstream: FakeUpstream) -> list[dict[str, Any]]:
    """Without what the engine asks for itself."""
    return [body for body in upstream.bodies if body["prompt"] == PROMPT]


@pytest.mark.parametrize("failure", ["status", "hangs_after", "dies_after"])
def test_a_server_that_answers_no_request_is_put_aside_until_it_has_made_a_token(failure: str) -> None:
    first, second = FakeUpstream(), FakeUpstream()

    async def test() -> None:
        async with remote(first, second, upstream_timeout=0.5) as engine:
            setattr(first, failure, 500 if failure == "status" else 0)
            assert await text(engine, request()) == SAID
            assert healthy(engine) == [False, True]
            assert len(of_clients(first)) == 1
            assert [await text(engine, request()) for _ in range(5)] == [SAID] * 5
            await until(lambda: len(first.bodies) > 2)  # it is asked for a token, in vain
            assert healthy(engine) == [False, True]
            assert [await text(engine, request()) for _ in range(5)] == [SAID] * 5
            assert len(of_clients(first)) == 1
            setattr(first, failure, 200 if failure == "status" else None)
            await until(lambda: healthy(engine) == [True, True])
            second.status = 503
            assert await text(engine, request()) == SAID
            assert len(of_clients(first)) == 2

    run(test())


def test_a_request_that_fails_everywhere_does_not_take_the_servers_from_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet, "FIRST_RETRY_S", 60.0)  # nobody is asked for a token meanwhile
    upstreams = [FakeUpstream(), FakeUpstream()]

    async def test() -> None:
        async with remote(*upstreams) as engine:
            for upstream in upstreams:
                upstream.status = 500
            with pytest.raises(EngineFailed, match="does not want to"):
                await outputs(engine, request())
            assert healthy(engine) == [False, False]
            assert engine.health().is_alive
            for upstream in upstreams:
                upstream.status = 200
            assert await text(engine, request()) == SAID

    run(test())


def test_servers_that_make_no_token_are_given_up_and_said_to_be() -> None:
    upstream = FakeUpstream()

    async def test() -> None:
        async with remote(upstream) as engine:
            upstream.status = 500
            with pytest.raises(EngineFailed):
                await outputs(engine, request())
            await until(lambda: not engine.health().is_alive)
            num_before = len(of_clients(upstream))
            with pytest.raises(Unavailable, match="answers 500: it does not want to"):
                await outputs(engine, request())
            assert len(of_clients(upstream)) == num_before
            upstream.status = 200
            await until(lambda: engine.health().is_alive)
            assert await text(engine, request()) == SAID

    run(test())


def test_a_server_that_lists_the_model_no_more_gets_nothing_until_it_does_and_is_asked_anew_then() -> None:
    first, second = FakeUpstream(), FakeUpstream()

    async def test() -> None:
        async with remote(first, second) as engine:
            first.model = "another"
            await until(lambda: healthy(engine) == [False, True])
            assert [await text(engine, request()) for _ in range(3)] == [SAID] * 3
            assert not first.bodies
            second.model = "another"
            await until(lambda: healthy(engine) == [False, False])
            with pytest.raises(Unavailable, match="no longer lists model m"):
                await outputs(engine, request())
            first.accepts = frozenset({"model", "prompt", "max_tokens", "stream", "temperature", "seed"})
            first.model = second.model = "m"
            await until(lambda: healthy(engine) == [False, True])
            await until(lambda: bool(first.bodies))
            assert await text(engine, request()) == SAID
            assert not of_clients(first), "it takes no top_p now, which was promised"

    run(test())


def test_a_server_whose_context_has_shrunk_gets_nothing_until_it_is_long_enough() -> None:
    first, second = FakeUpstream(), FakeUpstream()

    async def test() -> None:
        async with remote(first, second) as engine:
            first.max_model_len = 32
            await until(lambda: healthy(engine) == [False, True])
            assert await text(engine, request()) == SAID
            assert not of_clients(first)
            first.max_model_len = 128
            await until(lambda: healthy(engine) == [True, True])
            assert engine.capabilities.max_model_len == 64, "what was promised stays"

    run(test())
