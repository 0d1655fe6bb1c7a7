"""Runs the requests of one call, and keeps their events until the call's writer takes them.

Does not encode or write. Used by the responder, on the event loop; `aclose` ends every request on every path.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from dragoman.errors import Cancelled, failure_of
from dragoman.server.api import IndexedEvent
from dragoman.server.registry import GenerationService
from dragoman.types import GenerationEvent, GenerationRequest

MAX_WAITING_BYTES = 8 << 20  # of one call's events, beside what the transport and the kernel hold
MAX_BATCH = 256  # events: a slow client's events are encoded in pieces, so that they delay no other call
_EVENT_BYTES = 640  # with its text
_TOKEN_BYTES = 320
_ALTERNATIVE_BYTES = 320
_STRIDE = 64  # events between two measurements: measuring each would cost more than adding it


class CallEvents:
    """The events of one call, in order. The requests end if more than `MAX_WAITING_BYTES` wait for a slow client."""

    def __init__(self, service: GenerationService, requests: Sequence[GenerationRequest]) -> None:
        self.service = service
        self._requests = requests
        self._ready: list[IndexedEvent] = []
        self._num_measured = 0  # of these
        self._next_measure = _STRIDE  # the number of events at which they are measured again
        self._waiting_bytes = 0  # of the measured ones
        self._change: asyncio.Future[None] | None = None  # the writer waits for it: a future costs less than an Event
        self._is_woken = False
        self._num_running = len(requests)
        self._num_unfinished = [request.sampling.n for request in requests]  # of each one's sequences
        self._error: Exception | None = None
        self._gone: Exception | None = None  # why the answer is no longer wanted
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_finished(self) -> bool:
        """True if every request has ended and every event was handed out; a failure is not an end."""
        return self._num_running == 0 and not self._ready and self._error is None and self._gone is None

    def start(self, wait_gone: Callable[[], Awaitable[Exception]]) -> None:
        """Begin to run; `wait_gone` returns, with the reason, when the answer is no longer wanted."""
        self._tasks = [asyncio.create_task(self._run(index, request)) for index, request in enumerate(self._requests)]
        self._tasks.append(asyncio.create_task(self._watch(wait_gone)))

    async def first_batch(self, hold_s: float = 0.0, due_s: Callable[[], float] | None = None) -> list[IndexedEvent]:
        """The events until the head of the answer is due: at least one; [] if the head is due or all ended without one.

        `hold_s`: seconds to gather events first. `due_s`: returns the seconds until the head is due without any event.
        Raises: what `wait_gone` returned; else the first failure, even after events: it can still be a status.
        """
        if hold_s > 0:
            self._next_measure = sys.maxsize  # events do not wait for the client now
            await self._hold(hold_s)
            self._next_measure = len(self._ready) + _STRIDE
        while not self._ready and self._has_more():
            if due_s is None:
                await self._next_change()
            elif (left_s := due_s()) <= 0:
                break
            else:
                await self._wait(left_s)
        if self._error is not None and self._gone is None:
            raise self._error
        return self._take(len(self._ready))

    def wake(self) -> None:
        """Have a waiting `next_batch` return, even without an event."""
        self._is_woken = True
        self._notify()

    async def next_batch(self) -> list[IndexedEvent]:
        """The events since the last call: 1 to `MAX_BATCH`; [] when all requests have ended, or after `wake`.

        Raises: what `wait_gone` returned; else the first failure, or Cancelled for a slow client, after its events.
        """
        self._is_woken = False
        while not self._ready and not self._is_woken and self._has_more():
            await self._next_change()
        if not self._ready and self._error is not None and self._gone is None:
            raise self._error
        batch = self._take(MAX_BATCH)
        if self._ready:
            await asyncio.sleep(0)
        return batch

    async def aclose(self) -> None:
        """Abort every request that still runs, and wait until that is done."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:  # else a second call would wait for a turn of the loop
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(self, most_s: float) -> None:
        change = self._next_change()
        timer = asyncio.get_running_loop().call_later(most_s, self._notify)
        try:
            await change
        finally:
            timer.cancel()

    async def _hold(self, hold_s: float) -> None:
        try:
            async with asyncio.timeout(hold_s):
                while self._has_more():
                    await self._next_change()
        except TimeoutError:
            return

    def _take(self, most: int) -> list[IndexedEvent]:
        if self._gone is not None:
            raise self._gone
        batch, self._ready = self._ready, []
        if len(batch) >= _STRIDE:  # else none of it was measured
            batch, self._ready = batch[:most], batch[most:]
            self._num_measured = self._waiting_bytes = 0
            self._next_measure = _STRIDE
        return batch

    def _measure(self) -> None:
        added = self._ready[self._num_measured :]
        self._waiting_bytes += sum(_size_bytes(entry.event) for entry in added)
        self._num_measured += len(added)
        self._next_measure = self._num_measured + _STRIDE
        if self._waiting_bytes > MAX_WAITING_BYTES and self._error is None:
            self._error = Cancelled(
                f"the answer is read too slowly: more than {MAX_WAITING_BYTES >> 20} MiB of it wait to be sent"
            )
            self._end_requests()

    def _has_more(self) -> bool:
        return self._num_running > 0 and self._error is None and self._gone is None

    def _next_change(self) -> asyncio.Future[None]:
        """Done with the next `_notify`. Only the writer asks, each time after it looked, so it misses nothing."""
        self._change = asyncio.get_running_loop().create_future()
        return self._change

    def _notify(self) -> None:
        change, self._change = self._change, None
        if change is not None and not change.done():  # done: the writer was cancelled
            change.set_result(None)

    async def _run(self, index: int, request: GenerationRequest) -> None:
        try:
            await self.service.run(request, partial(self._put, index))
        except BaseException as error:  # request boundary: carried to the writer, which answers it
            self._error = self._error or failure_of(error)
        finally:
            self._num_running -= 1
            self._notify()

    def _put(self, index: int, event: GenerationEvent) -> None:
        """Called for all requests of an engine's step in one turn of the loop, before any writer runs."""
        self._ready.append(IndexedEvent(index, event))
        if len(self._ready) >= self._next_measure:
            self._measure()
        if event.finish_reason is not None:
            self._num_unfinished[index] -= 1
            if not self._num_unfinished[index]:
                return  # `_run` ends now, and wakes the writer for both
        change = self._change
        if change is not None:
            self._change = None
            if not change.done():  # done: the writer was cancelled
                change.set_result(None)

    async def _watch(self, wait_gone: Callable[[], Awaitable[Exception]]) -> None:
        self._gone = await wait_gone()
        self._end_requests()
        self._notify()

    def _end_requests(self) -> None:
        for task in self._tasks[:-1]:  # now: the writer may be waiting for a client that reads nothing
            task.cancel()


def _size_bytes(event: GenerationEvent) -> int:
    size = _EVENT_BYTES + 2 * len(event.text)
    for token in event.tokens:
        size += _TOKEN_BYTES + _ALTERNATIVE_BYTES * len(token.top)
    return size
