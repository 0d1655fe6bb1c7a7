"""Limits the memory of the pictures of all requests of the process. Used on any thread and event loop.

Each stage has its pool, so that no request waits for bytes that only another waiting request could return: a request
with files waits for pixels, then for decoding, and decoding waits for nothing. Fetched files have a separate pool, so
that slow hosts do not delay pictures that were sent.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from concurrent.futures import Future
from functools import cache
from threading import Lock
from time import monotonic
from weakref import WeakSet

from dragoman.errors import Overloaded
from dragoman.pictures.limits import MEBIBYTE

_COLLECTED_EVERY_S = 2.0
MAX_WAIT_S = 10.0  # then the request is refused
DEFAULT_BYTES = 2048 * MEBIBYTE


class Loan:
    """Bytes lent until `give_back`, until its `with` block ends, or until nothing refers to the loan."""

    __slots__ = ("_num_bytes", "_pool")

    def __init__(self, pool: Pool, num_bytes: int) -> None:
        self._pool = pool
        self._num_bytes = num_bytes

    def part(self, num_bytes: int) -> Loan:
        """A new loan of `num_bytes` of this one's bytes, which this one loses."""
        self._num_bytes -= num_bytes
        return Loan(self._pool, num_bytes)

    def moved(self) -> Loan:
        """A new loan of all its bytes, which gives them back instead of this one."""
        return self.part(self._num_bytes)

    def shrink(self, num_bytes: int) -> None:
        """Give back all but `num_bytes` bytes."""
        self.part(max(self._num_bytes - num_bytes, 0)).give_back()

    def give_back(self) -> None:
        num_bytes, self._num_bytes = self._num_bytes, 0
        if num_bytes:
            self._pool.take_back(num_bytes)

    def __enter__(self) -> Loan:
        return self

    def __exit__(self, *_error: object) -> None:
        self.give_back()

    def __del__(self) -> None:
        self.give_back()


class Pool:
    """`num_bytes` for one purpose. A request for more gets them alone, so that it does not wait for ever."""

    def __init__(self, num_bytes: int, max_wait_s: float = MAX_WAIT_S) -> None:
        self.num_lent = 0
        self._num_bytes = num_bytes
        self._max_wait_s = max_wait_s
        self._returned: deque[int] = deque()
        self._asked: deque[tuple[int, Future[Loan]]] = deque()
        self._collected_s = float("-inf")
        self._is_due = False
        self._lock = Lock()

    async def lend(self, num_bytes: int) -> Loan:
        """A loan of `num_bytes`, after all earlier requests for bytes. Raises: Overloaded if they do not come in time."""
        lent: Future[Loan] = Future()
        self._asked.append((num_bytes, lent))
        self._settle()
        if not lent.done():
            self._collect()
        if lent.done():
            return lent.result()
        try:
            async with asyncio.timeout(self._max_wait_s):
                return await asyncio.wrap_future(lent)
        except TimeoutError:
            raise Overloaded(
                f"other requests' images left no memory for {self._max_wait_s:g} s (max_image_memory); try again later"
            ) from None
        finally:
            self._settle()  # a request that has left must not block the queue

    def _collect(self) -> None:
        """Collect reference cycles, in which failed requests may hold pictures; not often, as it takes long."""
        now_s = monotonic()
        if now_s - self._collected_s > _COLLECTED_EVERY_S:
            self._collected_s = now_s
            gc.collect()

    def take_back(self, num_bytes: int) -> None:
        self._returned.append(num_bytes)
        self._settle()

    def _settle(self) -> None:
        """Count returned bytes, and lend to the first in the queue. The thread with the lock does it for all others
        too.

        No thread waits for the lock: a loan may be collected, and come back, at any moment on any thread.
        """
        self._is_due = True
        while self._is_due and self._lock.acquire(blocking=False):
            self._is_due = False
            try:
                while self._returned:
                    self.num_lent -= self._returned.popleft()
                while self._lend_first():
                    pass
            finally:
                self._lock.release()

    def _lend_first(self) -> bool:
        if not self._asked:
            return False
        num_bytes, lent = self._asked[0]
        if not lent.cancelled() and self.num_lent and self.num_lent + num_bytes > self._num_bytes:
            return False
        self._asked.popleft()
        if lent.set_running_or_notify_cancel():
            self.num_lent += num_bytes
            lent.set_result(Loan(self, num_bytes))
        return True


class PictureMemory:
    def __init__(self, num_bytes: int = DEFAULT_BYTES, max_wait_s: float = MAX_WAIT_S) -> None:
        share = num_bytes // 16
        self.sent = Pool(2 * share, max_wait_s)  # with the memory for reading base64
        self.fetched = Pool(3 * share, max_wait_s)
        self.decoding = Pool(4 * share, 6 * max_wait_s)  # requests that have come so far are served
        self.pictures = Pool(7 * share, max_wait_s)
        _memories.add(self)

    @property
    def num_lent(self) -> int:
        return sum(pool.num_lent for pool in (self.sent, self.fetched, self.decoding, self.pictures))


_memories: WeakSet[PictureMemory] = WeakSet()


def num_lent_bytes() -> int:
    return sum(memory.num_lent for memory in _memories)


@cache
def process_memory(num_bytes: int = DEFAULT_BYTES) -> PictureMemory:
    return PictureMemory(num_bytes)
