"""An engine whose replicas are somebody else's dies when they cannot be reached, and not before; needs no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dragoman.engine.base import Capabilities
from dragoman.engine.spread import Failure
from dragoman.errors import EngineDead
from dragoman.ray.watched import MOST_MISSES, WatchedEngine
from dragoman.types import EngineOutput, EngineRequest, SamplingParams

REQUEST = EngineRequest("r", (1, 2, 3), SamplingParams(), 4, 7)
CAPABILITIES = Capabilities(max_model_len=64, vocab_size=16)


class NoReplies:
    """Of replicas that never answer."""

    def __aiter__(self) -> AsyncIterator[EngineOutput | Failure]:
        return self

    async def __anext__(self) -> EngineOutput | Failure:
        await asyncio.Event().wait()
        raise AssertionError("nothing ends this")

    async def aclose(self) -> None:
        """Nothing was sent."""


def test_what_waits_for_replicas_that_are_gone_fails_and_health_says_why() -> None:
    async def test() -> None:
        engine = WatchedEngine(CAPABILITIES, lambda *_: NoReplies(), lambda: "the cluster is gone", every_s=0.001)
        await engine.start()
        assert engine.health().is_alive
        with pytest.raises(EngineDead, match="the cluster is gone"):
            await anext(aiter(engine.generate(REQUEST)))
        assert (engine.health().is_alive, engine.health().reason) == (False, "the cluster is gone")
        assert engine.health().num_waiting == 0
        with pytest.raises(EngineDead, match="the cluster is gone"):
            await anext(aiter(engine.generate(REQUEST)))
        await engine.shutdown(0.0)

    asyncio.run(asyncio.wait_for(test(), 30))


def test_a_controller_that_starts_anew_costs_nothing() -> None:
    """Fewer looks in a row than it takes find nobody, again and again."""
    answers = [*["away"] * (MOST_MISSES - 1), ""] * 4
    looked = 0

    async def test() -> None:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def why_unreachable() -> str:
            nonlocal looked
            looked += 1
            if looked > len(answers):
                loop.call_soon_threadsafe(done.set)
                return ""
            return answers[looked - 1]

        engine = WatchedEngine(CAPABILITIES, lambda *_: NoReplies(), why_unreachable, every_s=0.001)
        await engine.start()
        await done.wait()
        assert engine.health().is_alive
        await engine.shutdown(0.0)
        num_looks = looked
        assert not engine.health().is_alive
        await asyncio.sleep(0)
        assert looked - num_looks <= 1  # one that was under way; nobody looks after the end

    asyncio.run(asyncio.wait_for(test(), 30))
