"""Waits until a call's model is loaded, and keeps its stream alive with bytes that depend only on the API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from time import perf_counter
from typing import TypeVar

from dragoman.errors import RequestTimeout, ServerError
from dragoman.server.api import Call, Dialect, HttpCall
from dragoman.server.http.exchange import Exchange
from dragoman.server.observation.record import current_call
from dragoman.server.responder import as_server_error, cancel_all, pulse_of

T = TypeVar("T")


class Waiting:
    """One waiting call. `keep_alive_s`: the longest silence of a stream, 0 = any."""

    def __init__(self, exchange: Exchange, dialect: Dialect, http: HttpCall, keep_alive_s: float) -> None:
        self._exchange = exchange
        self._http = http
        self._keep_alive_s = keep_alive_s
        self._call = _parsed(dialect, http)
        self._pulse = b""

    async def until(self, work: Awaitable[T]) -> T:
        """The result of `work`. Raises: ClientGone, RequestTimeout after the client's time limit, as `work`."""
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(self._exchange.wait_gone())
        try:
            while True:
                left_s = self._left_s()
                pause_s = min((one for one in (left_s, self._keep_alive_s or None) if one is not None), default=None)
                await asyncio.wait((task, gone), timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return task.result()
                if gone.done():
                    raise gone.result()
                if (left_s := self._left_s()) is not None and left_s <= 0:
                    raise self._too_late()
                await self._keep_alive()
        finally:
            await cancel_all((task, gone))

    async def fail(self, error: Exception) -> None:
        """Send a failure as the end of a stream that has begun."""
        failure = as_server_error(error, self._http)
        if (record := current_call()) is not None:
            record.error = failure
        last = None if self._call is None else self._call.encoder.stream_error(failure)
        if last is None:
            await self._exchange.cut()
        else:
            await self._exchange.finish(last)

    async def _keep_alive(self) -> None:
        call = self._call
        if call is None or not call.stream or not call.is_head_fixed or self._exchange.is_detached:
            return
        if not self._exchange.is_started:
            head = call.encoder.head([])
            self._pulse = pulse_of(call.encoder, head)
            if not self._pulse:
                self._call = None  # every byte would be part of the answer
                return
            await self._exchange.send_head(head)
        await self._exchange.send_chunk(self._pulse)

    def _left_s(self) -> float | None:
        """Seconds that the client still waits; None = no limit. Without a stream, its wait for the first byte counts."""
        record = current_call()
        if record is None:
            return None
        is_whole = self._call is not None and not self._call.stream
        limit_s = record.patience_s if record.timeout_s is None and is_whole else record.timeout_s
        return None if limit_s is None else record.begin_s + limit_s - perf_counter()

    def _too_late(self) -> ServerError:
        record = current_call()
        assert record is not None  # it had a limit
        limit_s = record.timeout_s if record.timeout_s is not None else record.patience_s
        return RequestTimeout(
            f"the request took longer than the {limit_s:g} s that the client allows ({record.timeout_name}): "
            "its model was still being loaded"
        )


def _parsed(dialect: Dialect, http: HttpCall) -> Call | None:
    """The call as parsed without its model; None if that fails, which the model's own dialect reports."""
    try:
        opening = dialect.open(http)
        return opening.parse() if opening.answer is None and opening.run_off_loop is None else None
    except Exception:  # the model's own dialect reports the error
        return None
