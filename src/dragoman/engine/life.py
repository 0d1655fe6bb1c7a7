"""The life of an engine: whether it takes requests, its thread or its requests on the event loop, and their outputs.

Called by the engines, on event loops; an engine that computes on its own thread also calls it there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

from dragoman.cores import enter_kernels
from dragoman.engine.base import DEATHS, Take
from dragoman.errors import Cancelled, EngineDead, Overloaded, RequestTimeout, ServerError
from dragoman.types import EngineOutput, EngineRequest

logger = logging.getLogger(__name__)

NOT_STARTED = "the engine was not started"


class Life:
    """The state that decides whether an engine accepts requests. `death`: why it cannot run any; "" if it can."""

    def __init__(self) -> None:
        self.death = NOT_STARTED
        self.is_draining = False
        self.refusal = "the server is shutting down"

    def check_open(self) -> None:
        if self.death:
            raise EngineDead(self.death)
        if self.is_draining:
            raise Overloaded(self.refusal)

    def end(self) -> None:
        self.death = self.death or "the engine was shut down"


class OnThread(Life):
    """The life of an engine that computes on its own thread.

    Does not refer to the engine, whose gigabytes are freed with the last reference to it.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._thread: threading.Thread | None = None

    @property
    def has_begun(self) -> bool:
        return self._thread is not None

    def begin(self, run: Callable[[], None], fail: Callable[[EngineDead], None]) -> None:
        """Start the thread, unless it runs. `fail` answers all requests. Raises: EngineDead after its end."""
        if self._thread is not None:
            if self.death:
                raise EngineDead(self.death)
            return
        self.death = ""
        self._thread = threading.Thread(target=self._work, args=(run, fail), name=self._name, daemon=True)
        self._thread.start()

    async def drain(self, wait: Callable[[float], None], drain_s: float) -> None:
        """Refuse new requests; while the thread runs, `wait` up to `drain_s` seconds for the running ones."""
        self.is_draining = True
        if self._thread is not None and not self.death:
            await asyncio.to_thread(wait, drain_s)

    async def join(self) -> None:
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _work(self, run: Callable[[], None], fail: Callable[[EngineDead], None]) -> None:
        enter_kernels()
        try:
            run()
        except BaseException as error:  # a bug or an error of the runtime: no state can be trusted any more
            logger.exception("the engine thread died")
            self.death = f"the engine stopped: {type(error).__name__}: {error}"
            fail(EngineDead(self.death))
            DEATHS.tell()


Put = Callable[[EngineOutput], None]
"""Passes an output of a request on. Raises: Enough, which ends the request's work."""


class Enough(Exception):
    """Nobody takes further outputs of the request."""


class OnLoop(Life):
    """The life of an engine whose requests run on the event loop, each in the task of its caller."""

    def __init__(self) -> None:
        super().__init__()
        self.num_tokens = 0  # of outputs that were passed on
        self._limits: set[asyncio.Timeout] = set()  # one for each request
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._end: tuple[type[ServerError], str] | None = None  # the error of all requests; None = they may run

    @property
    def num_requests(self) -> int:
        return len(self._limits)

    async def run(
        self,
        request: EngineRequest,
        take: Take,
        work: Callable[[Put], Awaitable[None]],
        deadline_s: float | None = None,
    ) -> None:
        """Do a request's work, which puts its outputs. `deadline_s`: seconds since the epoch.

        Raises: RequestTimeout; the error of `stop`; errors of `work` and of `take`.
        """
        num_open = request.sampling.n
        is_over = False
        failure: BaseException | None = None

        def put(output: EngineOutput) -> None:
            nonlocal num_open, is_over, failure
            if is_over:  # from another sequence, which is not cancelled yet
                raise Enough
            self.num_tokens += len(output.token_ids)
            num_open -= output.finish_reason is not None
            try:
                is_over = not take(output) and num_open > 0
            except BaseException as error:  # libraries' panics do not derive from Exception
                is_over, failure = True, error
                raise Enough from error
            if is_over:
                raise Enough

        left_s = None if deadline_s is None else deadline_s - time.time()
        if left_s is not None and left_s <= 0:
            raise self._late()
        limit = asyncio.timeout(left_s)
        self._limits.add(limit)
        self._is_idle.clear()
        try:
            async with limit:
                await work(put)
        except Enough:
            pass
        except Exception as error:
            if not limit.expired():
                raise
            raise self._late() from error  # an interrupted work may end with any error
        finally:
            self._limits.discard(limit)
            if not self._limits:
                self._is_idle.set()
        if failure is not None:
            raise failure

    def stop(self, kind: type[ServerError], message: str) -> None:
        """End all requests with this error."""
        self._end = kind, message
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(0.0)

    async def finish(self, drain_s: float, message: str = "the engine is shutting down") -> None:
        """Refuse new requests, wait up to `drain_s` seconds for running ones, and end the rest with `message`."""
        self.is_draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await self._is_idle.wait()
        self.end()
        self.stop(Cancelled, message)
        await self._is_idle.wait()

    def _late(self) -> ServerError:
        if self._end is None:
            return RequestTimeout("the request's deadline has passed")
        kind, message = self._end
        return kind(message)


class Delivering(ABC):
    """An engine that passes outputs on as they come, and so can be iterated over."""

    @abstractmethod
    async def deliver(self, request: EngineRequest, take: Take) -> None:
        """See `base.deliver`."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """See `base.Engine`."""
        waiting: asyncio.Queue[EngineOutput | None] = asyncio.Queue()

        def keep(output: EngineOutput) -> bool:
            waiting.put_nowait(output)
            return True

        delivery = asyncio.create_task(self.deliver(request, keep))
        delivery.add_done_callback(lambda _: waiting.put_nowait(None))
        try:
            while (output := await waiting.get()) is not None:
                yield output
            await delivery
        finally:
            delivery.cancel()
            await asyncio.gather(delivery, return_exceptions=True)
