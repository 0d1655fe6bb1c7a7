"""The threads on which an operator's code runs, so that it can neither block the event loop nor keep the process alive.

One pool per model; `run` is awaited on the event loop. Idle threads end.
Python cannot stop a thread: a call that never returns keeps its daemon thread, and the number of those is bounded.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from dragoman.errors import HookError, Overloaded

T = TypeVar("T")

NUM_THREADS = 4  # formatters are short; more threads would only share the same interpreter lock
MAX_WAITING = 1000  # as many calls as the server queues requests by default
IDLE_S = 30.0  # how long a thread waits for more work; starting one costs far less than a formatter's call
MAX_STUCK = 64  # threads given up on; one holds about 8 MiB of address space and next to no memory


class _Job(NamedTuple):
    work: Callable[[], Any]
    future: asyncio.Future[Any]  # of the caller's event loop; cancelled = nobody waits for it any more


class HookPool:
    """`timeout_s` bounds each call, from the moment it was handed in; None = no bound. `subject` is called, for messages."""

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
