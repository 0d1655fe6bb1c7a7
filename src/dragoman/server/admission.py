"""Bounds how much work a model takes in: the door in front of the service.

Does: count requests in flight and the tokens of prompts that wait; refuse what is over the limits or comes during a drain,
and say when to retry; tell when the last request has ended.
Does not: order or batch requests, the engine's scheduler does. Called by the responder and `run`, on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from dragoman.errors import Overloaded, Unavailable
from dragoman.server.observation.record import CallRecord, RequestRecord
from dragoman.server.pressure import Forecast, least_tokens, queued_tokens
from dragoman.types import GenerationRequest

# LMI's `job_queue_size` and `max_rolling_batch_size` defaults (serving.properties reference, LMI v0.31)
DEFAULT_MAX_QUEUED = 1000
DEFAULT_MAX_RUNNING = 32


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Limits besides the number of requests; None = unlimited.

    `max_tokens`: of all prompts together that have no output yet. `max_of_caller`: requests in flight of each caller.
    `max_token_chars`: the most characters that one token of the model stands for.
    """

    max_tokens: int | None = None
    max_of_caller: int | None = None
    max_token_chars: int = 1


class Admission:
    """The requests of one model that may be running or waiting at a time.

    Requests in the background have room of their own, as much as all others together.
    `last_used_s`: when the last call left, on the monotonic clock; the beginning if none came.
    """

    def __init__(
        self,
        model: str,
        *,
        max_running: int = DEFAULT_MAX_RUNNING,
        max_queued: int = DEFAULT_MAX_QUEUED,
        bounds: QueueBounds | None = None,
        forecast: Forecast | None = None,
    ) -> None:
        if max_running < 1:
            raise ValueError(f"max_running {max_running} is not allowed: it must be at least 1")
        if max_queued < 0:
            raise ValueError(f"max_queued {max_queued} is not allowed: it must be at least 0")
        self._bounds = bounds or QueueBounds()
        self._forecast = forecast or Forecast()
        self._num_of_caller: Counter[str] = Counter()
        self._model = model
        self.max_running = max_running
        self.max_queued = max_queued
        self.last_used_s = time.monotonic()
        self._num_in_flight = 0
        self._num_background = 0  # of these
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
        """True while there is no permit and no visit."""
        return self._idle.is_set()

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Keep the model from being ended as idle while the block runs. Takes no room: how much is not known yet.

        Never refused; a permit is asked for inside.
        """
        self._num_visitors += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._num_visitors -= 1
            self._leave()

    def check(self, record: CallRecord | None = None) -> None:
        """Return if the call could be admitted now. Called before any work is done for it.

        Raises: as `permit`.
        """
        if self._refusal:
            raise Unavailable(self._refusal)
        is_background = _is_background(record)
        count = self._num_background if is_background else self._num_in_flight - self._num_background
        if count >= self.limit:
            raise self._overloaded(f"{count} requests in flight, {self.limit} allowed")
        if is_background:
            return
        caller = "" if record is None else record.caller
        most = self._bounds.max_of_caller
        if most is not None and (num_of_caller := self._num_of_caller[caller]) >= most:
            whose = f"of key {caller} " if caller else ""
            raise self._overloaded(f"{num_of_caller} requests {whose}in flight, {most} allowed for each key")
        if self._bounds.max_tokens is not None:
            self._check_tokens(1, self._forecast.num_queued_tokens)

    def permit(
        self, num_requests: int = 1, record: CallRecord | None = None, requests: Sequence[GenerationRequest] = ()
    ) -> AbstractContextManager[None]:
        """Hold room for a call of `num_requests` prompts while the block runs.

        A call is taken whole while any room is left: one with more prompts than the limit must not be refused for ever.
        All its prompt tokens need room, unless no others wait. The forecast reads from `record` what is left to compute.
        Entering it raises: Overloaded if the queue is full, Unavailable if the server or the model drains.
        """
        return _Permit(self, num_requests, record, requests)

    def enter(self, num_requests: int, record: CallRecord | None, requests: Sequence[GenerationRequest]) -> None:
        """Admit a call and count it. Called when a permit is entered. Raises: as `permit`."""
        self.check(record)
        caller = "" if record is None else record.caller
        if _is_background(record):
            self._num_background += num_requests
        elif record is not None:
            if self._bounds.max_tokens is not None:
                record.num_expected_tokens = least_tokens(requests, self._bounds.max_token_chars)
                self._check_tokens(record.num_expected_tokens, self._forecast.num_queued_tokens)
            record.take = self._take
            self._forecast.enter(record)
        self._num_in_flight += num_requests
        if self._bounds.max_of_caller is not None and not _is_background(record):
            self._num_of_caller[caller] += num_requests
        self._idle.clear()

    def leave(self, num_requests: int, record: CallRecord | None) -> None:
        """Stop counting a call. Called when a permit ends."""
        self._num_in_flight -= num_requests
        if _is_background(record):
            self._num_background -= num_requests
        else:
            if self._bounds.max_of_caller is not None:
                self._num_of_caller["" if record is None else record.caller] -= num_requests
            if record is not None:
                self._forecast.leave(record)
        self._leave()

    def retry_after_s(self) -> int:
        """Seconds after which a refused client should retry, by the forecast."""
        return self._forecast.retry_after_s()

    def _take(self, record: CallRecord, request: RequestRecord) -> None:
        """Count a request's prompt, now tokenised. Raises: Overloaded if it is too long to wait with the others."""
        record.num_expected_tokens = max(record.num_expected_tokens - request.num_queued_tokens, 0)
        if self._bounds.max_tokens is not None:
            count = queued_tokens(record)
            try:
                self._check_tokens(count, self._forecast.num_queued_tokens - count)
            except Overloaded:
                request.num_queued_tokens = 0  # it does not wait: its room is free at once
                raise

    def _check_tokens(self, count: int, num_others: int) -> None:
        """Raises: Overloaded if prompts of `count` tokens may not wait with the `num_others` tokens of other calls."""
        most = self._bounds.max_tokens
        if most is not None and num_others and num_others + count > most:
            raise self._overloaded(f"{num_others} prompt tokens wait, {most} allowed; this call has at least {count}")

    def _overloaded(self, why: str) -> Overloaded:
        message = f"Worker queue capacity exceeded for model: {self._model} ({why})"
        return Overloaded(message, retry_after_s=self.retry_after_s())

    def drain(self, why: str = "The server is shutting down") -> None:
        """Refuse every new call from now on, saying why."""
        self._refusal = self._refusal or f"{why} and takes no new requests for model: {self._model}"

    async def wait_idle(self) -> None:
        """Return once no request is in flight and no visit is open."""
        while not self._idle.is_set():  # again: a call may have come before this was woken
            await self._idle.wait()

    def _leave(self) -> None:
        self.last_used_s = time.monotonic()
        if self._num_in_flight == 0 and self._num_visitors == 0:
            self._idle.set()


def _is_background(record: CallRecord | None) -> bool:
    return record is not None and record.standing.is_background


class _Permit:
    """Room for a call, while a block runs. Not a generator: each call would pay for the standard library's wrapping."""

    __slots__ = ("_admission", "_num_requests", "_record", "_requests")

    def __init__(
        self, admission: Admission, num_requests: int, record: CallRecord | None, requests: Sequence[GenerationRequest]
    ) -> None:
        self._admission = admission
        self._num_requests = num_requests
        self._record = record
        self._requests = requests

    def __enter__(self) -> None:
        self._admission.enter(self._num_requests, self._record, self._requests)

    def __exit__(self, *_: object) -> None:
        self._admission.leave(self._num_requests, self._record)
