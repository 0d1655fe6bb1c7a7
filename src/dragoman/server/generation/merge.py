"""Merges the event streams of a call's requests into batches of what is ready.

Does: run one reader task per request, wake the writer, tell it of failures and of a client that left.
Does not: encode or write. Used by the responder, on the event loop; `aclose` ends every stream on every path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from dragoman.server.api import IndexedEvent
from dragoman.server.registry import GenerationService
from dragoman.types import GenerationRequest


class EventMerge:
    """The events of all requests of one call, in the order in which they happened.

    What a slow client has not taken yet waits here; it is bounded by the requests' own `max_tokens`.
    """

    def __init__(self, service: GenerationService, requests: Sequence[GenerationRequest]) -> None:
        self._service = service
        self._requests = requests
        self._ready: list[IndexedEvent] = []
        self._change: asyncio.Future[None] | None = None  # what the writer waits for: a future costs less than an Event
        self._num_running = len(requests)
        self._error: Exception | None = None
        self._gone: Exception | None = None  # why nobody wants the answer any more
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_finished(self) -> bool:
        """True if every request has ended and every event was handed out; a failure is not an end."""
        return self._num_running == 0 and not self._ready and self._error is None and self._gone is None

    def start(self, wait_gone: Callable[[], Awaitable[Exception]]) -> None:
        """Begin reading; `wait_gone` returns when nobody wants the answer any more, and why."""
        self._tasks = [asyncio.create_task(self._read(index, request)) for index, request in enumerate(self._requests)]
        self._tasks.append(asyncio.create_task(self._watch(wait_gone)))

    async def first_batch(self, hold_s: float = 0.0) -> list[IndexedEvent]:
        """What happened until the head of the answer is due: at least one event, [] when there was none to the end.

        With `hold_s` seconds, events are gathered until that time has passed or all requests have ended.
        Raises: what `wait_gone` returned; else the first failure so far, even if events came before it: it can still be a
        status.
        """
        if hold_s > 0:
            await self._hold(hold_s)
        while not self._ready and self._has_more():
            await self._next_change()
        if self._error is not None and self._gone is None:
            raise self._error
        return self._take()

    async def next_batch(self) -> list[IndexedEvent]:
        """What has happened since the last call, waiting for at least one event; [] when all requests have ended.

        Raises: what `wait_gone` returned; else the first failure of a request, once the events before it were handed out.
        """
        while not self._ready and self._has_more():
            await self._next_change()
        if not self._ready and self._error is not None and self._gone is None:
            raise self._error
        return self._take()

    async def aclose(self) -> None:
        """Close every stream that still runs, which aborts its request, and wait until that is done."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _hold(self, hold_s: float) -> None:
        try:
            async with asyncio.timeout(hold_s):
                while self._has_more():
                    await self._next_change()
        except TimeoutError:
            return

    def _take(self) -> list[IndexedEvent]:
        if self._gone is not None:
            raise self._gone
        batch, self._ready = self._ready, []
        return batch

    def _has_more(self) -> bool:
        return self._num_running > 0 and self._error is None and self._gone is None

    def _next_change(self) -> asyncio.Future[None]:
        """Done with the next `_notify`. Only the writer asks, each time after it looked, so it misses nothing."""
        self._change = asyncio.get_running_loop().create_future()
        return self._change

    def _notify(self) -> None:
        change = self._change
        if change is not None and not change.done():  # done: told already, or the writer was cancelled
            change.set_result(None)

    async def _read(self, index: int, request: GenerationRequest) -> None:
        try:
            stream = self._service.stream(request)
            try:
                async for event in stream:
                    self._ready.append(IndexedEvent(index, event))
                    self._notify()
            finally:
                await stream.aclose()
        except Exception as error:  # request boundary: carried to the writer, which answers it
            self._error = self._error or error
        finally:
            self._num_running -= 1
            self._notify()

    async def _watch(self, wait_gone: Callable[[], Awaitable[Exception]]) -> None:
        self._gone = await wait_gone()
        for task in self._tasks[:-1]:  # now: the writer may be waiting for a client that reads nothing
            task.cancel()
        self._notify()
