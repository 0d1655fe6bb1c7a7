"""Bounds how much work a model takes in: the door in front of the service.

Does: count requests in flight, refuse those over the limit or during a drain, tell when the last one is gone.
Does not: order or batch requests, the engine's scheduler does. Called by the responder and `run`, on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.errors import Overloaded, Unavailable

# LMI's `job_queue_size` and `max_rolling_batch_size` defaults (serving.properties reference, LMI v0.31)
DEFAULT_MAX_QUEUED = 1000
DEFAULT_MAX_RUNNING = 32


class Admission:
    """The requests of one model that may be running or waiting at a time.

    `last_used_s`: when the last call left, on the monotonic clock; the beginning if none came.
    """

    def __init__(
        self, model: str, *, max_running: int = DEFAULT_MAX_RUNNING, max_queued: int = DEFAULT_MAX_QUEUED
    ) -> None:
        if max_running < 1:
            raise ValueError(f"max_running {max_running} is not allowed: it must be at least 1")
        if max_queued < 0:
            raise ValueError(f"max_queued {max_queued} is not allowed: it must be at least 0")
        self._model = model
        self.max_running = max_running
        self.max_queued = max_queued
        self.last_used_s = time.monotonic()
        self._num_in_flight = 0
        self._num_visitors = 0
        self._refusal = ""
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def limit(self) -> int:
        """Requests that may be in flight: running plus queued."""
        return self.max_running + self.max_queued

    @property
    def num_in_flight(self) -> int:
        """Requests admitted and not yet answered."""
        return self._num_in_flight

    @property
    def is_draining(self) -> bool:
        """True if every new call is refused."""
        return bool(self._refusal)

    @property
    def is_idle(self) -> bool:
        """True while nobody holds a permit or visits."""
        return self._idle.is_set()

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Keep the model from being ended as idle while the block runs, without taking room: before it is known how much.

        Never refused; a permit is asked for inside.
        """
        self._num_visitors += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._num_visitors -= 1
            self._leave()

    @contextmanager
    def permit(self, num_requests: int = 1) -> Iterator[None]:
        """Hold room for a call of `num_requests` prompts while the block runs.

        A call is taken whole as long as any room is left: one with more prompts than the limit must not be refused for ever.
        Raises: Overloaded if the queue is full, Unavailable if the server or the model drains.
        """
        if self._refusal:
            raise Unavailable(self._refusal)
        if self._num_in_flight >= self.limit:
            raise Overloaded(
                f"Worker queue capacity exceeded for model: {self._model} "
                f"({self._num_in_flight} requests in flight, {self.limit} allowed)"
            )
        self._num_in_flight += num_requests
        self._idle.clear()
        try:
            yield
        finally:
            self._num_in_flight -= num_requests
            self._leave()

    def drain(self, why: str = "The server is shutting down") -> None:
        """Refuse every new call from now on, saying why."""
        self._refusal = self._refusal or f"{why} and takes no new requests for model: {self._model}"

    async def wait_idle(self) -> None:
        """Return once no request is in flight and nobody visits."""
        while not self._idle.is_set():  # again: somebody may have come back before this was woken
            await self._idle.wait()

    def _leave(self) -> None:
        self.last_used_s = time.monotonic()
        if self._num_in_flight == 0 and self._num_visitors == 0:
            self._idle.set()
