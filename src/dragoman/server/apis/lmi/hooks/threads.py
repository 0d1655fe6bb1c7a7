"""The threads on which an operator's code runs, so that it can neither block the event loop nor keep the process alive.

A pool for calls that return, and an event loop on a thread for an asynchronous handler: one of each per model, whose `run`
is awaited on the server's event loop. Python cannot stop a thread: a call that never returns keeps its daemon thread, and
the number of those is bounded.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from dragoman.errors import HookError, Overloaded

T = TypeVar("T")

NUM_THREADS = 4  # formatters are short; more threads would only share the same interpreter lock
MAX_WAITING = 1000  # as many calls as the server queues requests by default
IDLE_S = 30.0  # how long a thread waits for more work; starting one costs far less than a formatter's call
MAX_STUCK = 64  # threads given up on, or loops; one holds about 8 MiB of address space and next to no memory
PROBE_S = 1.0  # how long a loop may take to answer before it counts as blocked


class _Job(NamedTuple):
    work: Callable[[], Any]
    future: asyncio.Future[Any]  # of the caller's event loop; cancelled = nobody waits for it any more


class HookPool:
    """The threads for a model's calls, which end when idle. `subject` is called, for messages.

    `timeout_s` bounds each call, from the moment it was handed in; None = no bound.
    """

    def __init__(
        self,
        timeout_s: float | None,
        *,
        subject: str = "formatter",
        num_threads: int = NUM_THREADS,
        max_waiting: int = MAX_WAITING,
        max_stuck: int = MAX_STUCK,
        idle_s: float = IDLE_S,
    ) -> None:
        self._timeout_s = timeout_s
        self._subject = subject
        self._max_waiting = max_waiting
        self._max_stuck = max_stuck
        self._idle_s = idle_s
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        # The side that removes a call, in one step, decides its end.
        self._running: dict[asyncio.Future[Any], bool] = {}
        self.num_stuck = 0  # threads whose call was given up and has not returned
        self.num_live = 0  # threads that take jobs; stuck ones have lost their place
        self._num_threads = num_threads

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work()`, called on one of the threads.

        Raises: what `work` raises; HookError if it takes too long or too many calls hang; Overloaded if too many wait.
        """
        if self._jobs.qsize() >= self._max_waiting:
            raise Overloaded(
                f"{self._max_waiting} calls are already waiting for the {self._subject}s of this model; try again later"
            )
        if self.num_stuck >= self._max_stuck:
            raise HookError(
                f"The {self._subject}s of this model hang: {self.num_stuck} of their calls have not returned"
            )
        future = asyncio.get_running_loop().create_future()
        self._jobs.put(_Job(work, future))
        self._ensure_thread()
        timeout = asyncio.timeout(self._timeout_s)
        try:
            async with timeout:
                result: T = await future
                return result
        except TimeoutError as error:
            if not timeout.expired():
                raise  # the operator's code raised it
            raise HookError(f"The {self._subject} took longer than {self._timeout_s:g} s (hook_timeout_s)") from error
        finally:
            self._give_up(future)

    def _give_up(self, future: asyncio.Future[Any]) -> None:
        """Forget a call that nobody waits for any more; a thread that is busy with it gets a successor."""
        if future not in self._running:
            return
        with self._lock:
            if not self._running.pop(future, False):
                return
            self.num_stuck += 1
            self.num_live -= 1
        if not self._jobs.empty():
            self._ensure_thread()

    def _ensure_thread(self) -> None:
        with self._lock:
            if self.num_live == self._num_threads:
                return
            self.num_live += 1
        threading.Thread(target=self._work, name="dragoman-hook", daemon=True).start()

    def _next_job(self) -> _Job | None:
        """The next call; None if the thread has waited long enough, and then it has lost its place."""
        while True:
            try:
                return self._jobs.get(timeout=self._idle_s)
            except Empty:
                with self._lock:  # a job put before this is seen here; one put later finds the place free
                    if self._jobs.empty():
                        self.num_live -= 1
                        return None

    def _work(self) -> None:
        while (job := self._next_job()) is not None:
            if not self._make(job):
                return  # a successor has taken this thread's place
            del job  # else a thread that waits would keep what the call was about: a model, perhaps, that has gone

    def _make(self, job: _Job) -> bool:
        """Make the call, unless nobody waits for it, and hand its outcome over; False if it was given up meanwhile."""
        self._running[job.future] = True  # before the look at the future, so that giving up is seen in one of the two
        result, failure = None, None
        try:
            result = None if job.future.cancelled() else job.work()
        except BaseException as error:  # hook call: SystemExit too must end one request, not a thread
            failure = error
        if not self._running.pop(job.future, False):
            with self._lock:
                self.num_stuck -= 1
            return False
        if failure is not None and (not isinstance(failure, Exception) or isinstance(failure, StopIteration)):
            failure = HookError(f"The {self._subject} raised {type(failure).__name__}")  # a future cannot carry it
        with suppress(RuntimeError):  # the loop was closed: nobody waits
            job.future.get_loop().call_soon_threadsafe(_settle, job.future, result, failure)
        return True


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class HandlerLoop:
    """One event loop at a time; it starts with the first call and stops when this object is collected.

    Calls run side by side on it, as in LMI, so that they may share sessions and queues. A loop that a call blocks gets a
    successor.
    """

    def __init__(self, probe_s: float = PROBE_S) -> None:
        self._probe_s = probe_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stuck: list[threading.Thread] = []
        self._thread: threading.Thread | None = None

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
            is_free = threading.Event()
            with suppress(RuntimeError):  # it was closed
                loop.call_soon_threadsafe(is_free.set)
            asyncio.get_running_loop().call_later(self._probe_s, self._replace_blocked, loop, is_free)
            raise

    def _current(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_serve, args=(self._loop,), name="dragoman-handler", daemon=True)
            self._thread.start()
            weakref.finalize(self, _stop, self._loop)
        return self._loop

    def _replace_blocked(self, loop: asyncio.AbstractEventLoop, is_free: threading.Event) -> None:
        """Give up a loop that has not answered: later calls get a new one, and it ends when it is free again."""
        if not is_free.is_set() and self._loop is loop and self._thread is not None:
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
