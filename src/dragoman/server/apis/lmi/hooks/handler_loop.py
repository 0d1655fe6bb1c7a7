"""The event loop on which a model's asynchronous handler runs: its own, on its own thread.

Calls run side by side on one loop, as in LMI, so that they may share sessions and queues. A loop that a call blocks gets
a successor. One per model; `run` is awaited on the server's event loop.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dragoman.errors import HookError

T = TypeVar("T")

MAX_STUCK = 64  # loops given up on, each with its thread
PROBE_S = 1.0  # how long a loop may take to answer before it counts as blocked


class HandlerLoop:
    """One event loop at a time; it starts with the first call and stops when this object is collected."""

    def __init__(self, probe_s: float = PROBE_S) -> None:
        self._probe_s = probe_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stuck: list[threading.Thread] = []
        self._thread: threading.Thread | None = None
        self._probes: set[asyncio.Task[None]] = set()

    @property
    def num_stuck(self) -> int:
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        return len(self._stuck)

    async def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `make()` on the loop. Raises: what it raises; HookError if loops hang or another call blocked it."""
        if self.num_stuck >= MAX_STUCK:
            raise HookError(f"The handlers of this model hang: {self.num_stuck} of their event loops are blocked")
        loop = self._current()
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(make(), loop))
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if own is not None and not own.cancelling():
                raise HookError("The handlers' event loop was blocked by another call and abandoned") from None
            probe = asyncio.create_task(self._probe(loop))
            self._probes.add(probe)
            probe.add_done_callback(self._probes.discard)
            raise

    def _current(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_serve, args=(self._loop,), name="dragoman-handler", daemon=True)
            self._thread.start()
            weakref.finalize(self, _stop, self._loop)
        return self._loop

    async def _probe(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give up a loop that does not answer: later calls get a new one, and it ends when it is free again."""
        own, is_free = asyncio.get_running_loop(), asyncio.Event()
        loop.call_soon_threadsafe(_tell, own, is_free)
        try:
            async with asyncio.timeout(self._probe_s):
                await is_free.wait()
        except TimeoutError:
            if self._loop is loop and self._thread is not None:
                self._stuck.append(self._thread)
                self._loop = None
                _stop(loop)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(_end_calls())
    finally:
        loop.close()


async def _end_calls() -> None:
    """Cancel the calls that are still on a loop that ends: those that waited beside one that blocked it."""
    await asyncio.sleep(0)  # what was handed over meanwhile becomes a task
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others)


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)


def _tell(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
