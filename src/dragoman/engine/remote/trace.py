"""Identifies the upstream requests of one request in logs and traces. Source: W3C Trace Context."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dragoman.types import TraceContext


class Trace:
    """The parent in each `headers` is the call's span, or a new id if none is recorded."""

    __slots__ = ("_context", "_request_id")

    def __init__(self, request_id: str, context: TraceContext | None = None) -> None:
        self._request_id = request_id
        self._context = context or TraceContext(os.urandom(16).hex(), is_sampled=True)

    def headers(self) -> Mapping[str, str]:
        context = self._context
        span_id = context.span_id or os.urandom(8).hex()
        parent = f"00-{context.trace_id}-{span_id}-0{int(context.is_sampled)}"
        headers = {"traceparent": parent, "x-request-id": self._request_id}
        return headers | {"tracestate": context.state} if context.state else headers
