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
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from dragoman.errors import HookError, Overloaded

T = TypeVar("T")

NUM_THREADS = 4  # formatters are short; more threads would only share the same interpreter lock
MAX_WAITING = 1000  # as many calls as the server queues requests by default
MAX_STUCK = 64  # threads given up on, or loops; one holds about 8 MiB of address space and next to no memory
PROBE_S = 1.0  # how long a loop may take to answer before it counts as blocked


@dataclass(slots=True, eq=False)
class _Job:
    """One call. Its thread sets `is_begun`; the event loop sets `is_stuck` if nobody waits for a call that has begun."""

    work: Callable[[], Any]
    future: asyncio.Future[Any]  # of the caller's event loop
    settle: Callable[[_Job, Any, BaseException | None], None]  # called there
    is_begun: bool = False
    is_stuck: bool = False


class HookPool:
    """The threads for a model's calls, which end when this object is collected. `subject` is called, for messages.

    `timeout_s` bounds each call, from the moment it was handed in; None = no bound. Only the event loop changes its state.
    """

    def __init__(
        self,
        timeout_s: float | None,
        *,
        subject: str = "formatter",
        num_threads: int = NUM_THREADS,
        max_waiting: int = MAX_WAITING,
        max_stuck: int = MAX_STUCK,
    ) -> None:
        self._timeout_s = timeout_s
        self._subject = subject
        self._num_threads = num_threads
        self._max_waiting = max_waiting
        self._max_stuck = max_stuck
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()  # None ends a thread
        self.num_stuck = 0  # threads whose call was given up and has not returned
        self.num_live = 0  # threads that take jobs; stuck ones have lost their place
        weakref.finalize(self, _end_threads, self._jobs, num_threads)

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
        job = _Job(work, asyncio.get_running_loop().create_future(), self._settle)
        self._jobs.put(job)
        self._ensure_thread()
        timeout = asyncio.timeout(self._timeout_s)
        try:
            async with timeout:
                result: T = await job.future
                return result
        except TimeoutError as error:
            if not timeout.expired():
                raise  # the operator's code raised it
            raise HookError(f"The {self._subject} took longer than {self._timeout_s:g} s (hook_timeout_s)") from error
        finally:
            if job.future.cancelled() and job.is_begun:
                self._give_up(job)

    def _give_up(self, job: _Job) -> None:
        """Nobody waits for a call any more: the thread that is busy with it gets a successor."""
        job.is_stuck = True
        self.num_stuck += 1
        self.num_live -= 1
        if not self._jobs.empty():
            self._ensure_thread()

    def _ensure_thread(self) -> None:
        if self.num_live < self._num_threads:
            self.num_live += 1
            arguments = (self._jobs, self._subject)
            threading.Thread(target=_work, args=arguments, name="dragoman-hook", daemon=True).start()

    def _settle(self, job: _Job, result: Any, failure: BaseException | None) -> None:
        if job.is_stuck:
            self.num_stuck -= 1
            if self.num_live < self._num_threads:
                self.num_live += 1
            else:
                self._jobs.put(None)  # a successor has the thread's place
        elif job.future.done():
            return
        elif failure is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(failure)


def _work(jobs: SimpleQueue[_Job | None], subject: str) -> None:
    while (job := jobs.get()) is not None:
        _make(job, subject)
        del job  # else a thread that waits would keep what the call was about: a model, perhaps, that has gone


def _make(job: _Job, subject: str) -> None:
    """Make the call, unless nobody waits for it, and hand its outcome over."""
    job.is_begun = True  # before the look at the future, so that giving up is seen in one of the two
    result, failure = None, None
    try:
        result = None if job.future.cancelled() else job.work()
    except BaseException as error:  # hook call: SystemExit too must end one request, not a thread
        failure = error
    if failure is not None and (not isinstance(failure, Exception) or isinstance(failure, StopIteration)):
        failure = HookError(f"The {subject} raised {type(failure).__name__}")  # a future cannot carry it
    with suppress(RuntimeError):  # the loop was closed: nobody waits
        job.future.get_loop().call_soon_threadsafe(job.settle, job, result, failure)


def _end_threads(jobs: SimpleQueue[_Job | None], num_threads: int) -> None:
    for _ in range(num_threads):
        jobs.put(None)


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
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
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
