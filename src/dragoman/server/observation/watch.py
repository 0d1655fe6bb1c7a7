"""Watches each call that generates: lists running calls, and counts, logs and traces ended ones. On the event loop."""

from __future__ import annotations

import asyncio
import uuid
from time import perf_counter
from typing import Any

from dragoman.errors import Cancelled, ServerError
from dragoman.server.api import HttpCall, trace_of
from dragoman.server.http.exchange import Exchange
from dragoman.server.observation.metrics import CallMetrics
from dragoman.server.observation.record import CallRecord, enter_call
from dragoman.server.observation.request_log import RequestLog
from dragoman.server.observation.tracing import Tracing


class Watch:
    """The calls of one server. `log`, `tracing` None = off. `other_names`: see `MetricsRegistry`."""

    def __init__(
        self, log: RequestLog | None = None, other_names: tuple[str, ...] = (), tracing: Tracing | None = None
    ) -> None:
        self.metrics = CallMetrics()
        self.other_names = other_names
        self._log = log
        self._tracing = tracing
        self._running: dict[str, CallRecord] = {}  # by their ids
        self._spans: dict[str, Any] = {}  # of these

    @property
    def running(self) -> tuple[CallRecord, ...]:
        return tuple(self._running.values())

    def cancel(self, call_id: str) -> bool:
        """End the call with that id; False if none runs."""
        record = self._running.get(call_id)
        if record is not None:
            record.cancel(Cancelled(f"the request {call_id} was cancelled"))
        return record is not None

    def begin(self, api: str, exchange: Exchange, http: HttpCall) -> CallRecord:
        """The record of a call, for `end` later. Its id is the client's own, unless a running call has the same."""
        call_id = http.request_id
        if call_id in self._running:
            call_id = f"{call_id}-{uuid.uuid4().hex[:8]}"
        record = CallRecord(
            call_id,
            api,
            exchange.path,
            http.method,
            caller=exchange.caller,
            standing=exchange.standing,
            cancel=exchange.cancel,
        )
        record.trace = trace_of(http)
        if self._tracing is not None:
            self._spans[call_id] = self._tracing.begin(record, http.headers)
        enter_call(record)
        self._running[call_id] = record
        return record

    def end(self, record: CallRecord, exchange: Exchange) -> None:
        del self._running[record.call_id]
        record.status = exchange.status
        self._finish(record)
        if self._tracing is not None:
            self._tracing.end(self._spans.pop(record.call_id), record)

    def refused(self, api: str, exchange: Exchange, error: ServerError) -> None:
        """Count a call that was refused before it was read, for its key or its size."""
        record = CallRecord(exchange.request_id, api, exchange.path, exchange.method, caller=exchange.caller)
        record.status, record.error = exchange.status, error
        self._finish(record)

    async def aclose(self) -> None:
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    def _finish(self, record: CallRecord) -> None:
        record.end_s = perf_counter()
        self.metrics.observe(record)
        if self._log is not None:
            self._log.write(record)
