"""A replica's replies as an engine reads them, from a stand-in for Serve's stream. Needs Ray (`make test-ray`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from dragoman.engine.spread import ReplicaLost
from dragoman.types import EngineOutput

pytest.importorskip("ray", reason="Ray is not installed; see `make test-ray`")


class Stream:
    """Yields outputs, then fails with `error`, or waits without end. Its `cancel` fails as Serve's does."""

    def __init__(self, num_outputs: int, error: Exception | None = None) -> None:
        self._num_left = num_outputs
        self._error = error
        self.num_cancels = 0

    def __aiter__(self) -> AsyncIterator[EngineOutput]:
        return self

    async def __anext__(self) -> EngineOutput:
        if self._num_left:
            self._num_left -= 1
            return EngineOutput("r", 0, [7])
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()
        raise AssertionError("nothing ends this")

    def cancel(self) -> None:
        self.num_cancels += 1
        if self._error is not None:
            raise self._error


def test_a_request_that_serve_could_not_send_is_told_as_the_replicas_loss() -> None:
    from ray.serve._private.common import DeploymentID
    from ray.serve.exceptions import DeploymentUnavailableError

    from dragoman.ray.factory import _replies

    async def test() -> None:
        async with aclosing(_replies(Stream(0, DeploymentUnavailableError(DeploymentID("Engine", "app"))))) as replies:
            with pytest.raises(ReplicaLost, match="DeploymentUnavailableError"):
                await anext(replies)

    asyncio.run(test())


def test_who_reads_no_more_ends_the_request_on_its_replica() -> None:
    from dragoman.ray.factory import _replies

    async def test() -> None:
        stream = Stream(2)
        async with aclosing(_replies(stream)) as replies:
            await anext(replies)
        assert stream.num_cancels == 1
        stream = Stream(0)
        reading = asyncio.ensure_future(anext(_replies(stream)))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert stream.num_cancels == 1

    asyncio.run(test())
