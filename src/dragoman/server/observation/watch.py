"""Watches every call that generates: knows those that run, tells of each one that has ended.

Does: make records, hand them to log and metrics when they are complete. Does not: measure (the service and the responder
fill the records). Made by the app; used on the event loop only.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

from dragoman.errors import Cancelled, ServerError
from dragoman.server.api import HttpCall, trace_of
from dragoman.server.http.exchange import Exchange
from dragoman.server.observation.call_metrics import CallMetrics
from dragoman.server.observation.record import CallRecord, enter_call
from dragoman.server.observation.request_log import RequestLog
from dragoman.server.observation.tracing import Tracing


class Watch:
    """The calls of one server. `log` None = nothing is logged. `tracing` None = no spans are made.

    `other_names`: see `MetricsRegistry`.
    """

    def __init__(
        self, log: RequestLog | None = None, other_names: tuple[str, ...] = (), tracing: Tracing | None = None
    ) -> None:
        self.metrics = CallMetrics()
        self.other_names = other_names
        self._log = log
        self._tracing = tracing
        self._spans: dict[int, Any] = {}  # of those that run, by their records' ids
        self._running: dict[int, CallRecord] = {}

    @property
    def running(self) -> tuple[CallRecord, ...]:
        """The calls that have not been answered to the end, the oldest first."""
        return tuple(self._running.values())

    def cancel(self, call_id: str) -> int:
        """End the calls of that id; how many there are."""
        found = [record for record in self.running if record.call_id == call_id]
        for record in found:
            record.cancel(Cancelled(f"the request {call_id} was cancelled"))
        return len(found)

    def begin(self, api: str, exchange: Exchange, http: HttpCall) -> CallRecord:
        """The record of a call that is to be answered now, by this task; to be ended."""
        record = CallRecord(
            http.request_id,
            api,
            exchange.path,
            http.method,
            caller=exchange.caller,
            standing=exchange.standing,
            cancel=exchange.cancel,
        )
        record.trace = trace_of(http)
        if self._tracing is not None:
            self._spans[id(record)] = self._tracing.begin(record, http.headers)
        enter_call(record)
        self._running[id(record)] = record
        return record

    def end(self, record: CallRecord, exchange: Exchange) -> None:
        """The call has been answered, or nobody waits for it any more."""
        del self._running[id(record)]
        record.status = exchange.status
        self._finish(record)
        if self._tracing is not None:
            self._tracing.end(self._spans.pop(id(record)), record)

    def refused(self, api: str, exchange: Exchange, error: ServerError) -> None:
        """A call was answered with an error before it was looked at: its key or its size."""
        record = CallRecord(exchange.request_id, api, exchange.path, exchange.method, caller=exchange.caller)
        record.status, record.error = exchange.status, error
        self._finish(record)

    async def aclose(self) -> None:
        """Send the spans that are left."""
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    def _finish(self, record: CallRecord) -> None:
        record.end_s = perf_counter()
        self.metrics.observe(record)
        if self._log is not None:
            self._log.write(record)
