"""An engine whose requests run on replicas: which losses nobody notices, and which are told."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from dragoman.engine.base import MAX_ATTEMPTS, Engine, check_request
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.engine import RollingEngine
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.spread import Failure, Replies, SpreadEngine
from dragoman.errors import EngineDead, EngineFailed, InvalidRequest, Overloaded, UnsupportedFeature
from dragoman.types import EngineOutput, EngineRequest, Picture, PictureSpan, SamplingParams
from tests.engine.fake_runner import FakeRunner
from tests.support.letters import VOCAB_SIZE, letter_tools
from tests.support.near_replicas import NearReplies

REQUEST = EngineRequest("r", (1, 2, 3, 1, 2), SamplingParams(temperature=0.0, ignore_eos=True), 20, 7)


def rolling() -> Engine:
    runner = FakeRunner(num_blocks=100, vocab_size=VOCAB_SIZE, max_model_len=256)
    return RollingEngine(runner, Sampler(VOCAB_SIZE), RollingConfig(max_num_seqs=4), (), letter_tools())


class Replicas:
    """Engines by name; a request goes to the first that it may go to. `doomed`: lost as soon as they get a request."""

    def __init__(self, *names: str, doomed: int = 0) -> None:
        self.engines = {name: rolling() for name in names}
        self.sent: list[tuple[str, NearReplies]] = []
        self._doomed = doomed

    def send(self, request: EngineRequest, avoided: tuple[str, ...]) -> Replies:
        name = next((one for one in self.engines if one not in avoided), next(iter(self.engines)))
        replies = NearReplies(self.engines[name], request, name)
        self.sent.append((name, replies))
        if len(self.sent) <= self._doomed:
            replies.lose()
        return replies

    async def __aenter__(self) -> SpreadEngine:
        for engine in self.engines.values():
            await engine.start()
        spread = SpreadEngine(next(iter(self.engines.values())).capabilities, self.send)
        await spread.start()
        return spread

    async def __aexit__(self, *failure: object) -> None:
        for engine in self.engines.values():
            await engine.shutdown(0.0)


async def tokens(engine: Engine, request: EngineRequest = REQUEST) -> list[int]:
    async with aclosing(engine.generate(request)) as outputs:
        return [token async for output in outputs for token in output.token_ids]


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def test_replicas_without_room_are_told_as_such_and_when_to_come_again() -> None:
    async def test() -> None:
        refusals: list[Overloaded] = []

        class Full(NearReplies):
            async def __anext__(self) -> EngineOutput | Failure:
                refusals.append(Overloaded(f"{len(refusals)} wait", retry_after_s=7 + len(refusals)))
                return Failure(refusals[-1], f"replica {len(refusals)}")

        replicas = Replicas("a")
        async with replicas:
            spread = SpreadEngine(
                replicas.engines["a"].capabilities, lambda request, avoided: Full(replicas.engines["a"], request, "a")
            )
            await spread.start()
            with pytest.raises(Overloaded) as caught:
                await tokens(spread)
            assert caught.value is refusals[-1]
            assert caught.value.retry_after_s == 7 + MAX_ATTEMPTS - 1
            assert len(refusals) == MAX_ATTEMPTS

    run(test())


def test_a_request_whose_replica_is_lost_before_its_first_output_has_the_same_answer_from_another() -> None:
    async def test() -> None:
        async with Replicas("a") as engine:
            expected = await tokens(engine)
        replicas = Replicas("a", doomed=MAX_ATTEMPTS - 1)
        async with replicas as engine:
            assert await tokens(engine) == expected
            assert engine.health().num_running == engine.health().num_waiting == 0
        assert len(replicas.sent) == MAX_ATTEMPTS

    run(test())


def test_a_request_that_loses_every_replica_is_given_up() -> None:
    async def test() -> None:
        replicas = Replicas("a", doomed=100)
        async with replicas as engine:
            with pytest.raises(EngineFailed, match=f"{MAX_ATTEMPTS} replicas were lost"):
                await tokens(engine)
            assert engine.health().is_alive
        assert len(replicas.sent) == MAX_ATTEMPTS

    run(test())


def test_an_answer_that_has_begun_ends_with_an_error_when_its_replica_is_lost() -> None:
    async def test() -> None:
        replicas = Replicas("a", "b")
        async with replicas as engine, aclosing(engine.generate(REQUEST)) as outputs:
            await anext(outputs)
            replicas.sent[0][1].lose()
            with pytest.raises(EngineFailed, match="lost before the answer was complete"):
                [output async for output in outputs]
            assert engine.health().is_alive
        assert len(replicas.sent) == 1

    run(test())


def test_a_replica_whose_engine_is_dead_is_avoided_from_then_on() -> None:
    async def test() -> None:
        replicas = Replicas("a", "b")
        async with replicas as engine:
            await replicas.engines["a"].shutdown(0.0)
            assert len(await tokens(engine)) == 20
        assert [name for name, _ in replicas.sent] == ["a", "b"]

    run(test())


def test_what_is_the_requests_own_fault_is_not_tried_again() -> None:
    async def test() -> None:
        replicas = Replicas("a", "b")
        async with replicas as engine:
            with pytest.raises(InvalidRequest):
                await tokens(engine, EngineRequest("r", (), SamplingParams(), 5, 7))
        assert len(replicas.sent) == 1

    run(test())


def test_a_death_of_a_replica_is_not_told_as_the_servers_own() -> None:
    """Clients and health checks take EngineDead for the end of the server, which has other replicas."""

    async def test() -> None:
        replicas = Replicas("a")
        async with replicas as engine:
            await replicas.engines["a"].shutdown(0.0)
            with pytest.raises(EngineFailed) as failure:
                await tokens(engine)
            assert not isinstance(failure.value, EngineDead)
            assert engine.health().is_alive

    run(test())


def test_what_would_be_refused_here_is_told_without_asking_a_replica() -> None:
    async def test() -> None:
        replicas = Replicas("a")
        async with replicas as engine:
            check_request(engine, REQUEST)
            picture = PictureSpan(Picture(1, 1, b"\0\0\0", "digest"), 0, 1)
            with pytest.raises(UnsupportedFeature, match=r"^pictures 1 "):
                check_request(engine, msgspec.structs.replace(REQUEST, pictures=(picture,)))
            await engine.shutdown(0.0)
            with pytest.raises(EngineDead):
                check_request(engine, REQUEST)
        assert not replicas.sent

    run(test())
