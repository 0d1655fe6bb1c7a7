"""How the requests that go upstream for one request are told apart, and belong together, in logs and traces.

Does: headers for each, in the client's trace if it has named one. Does not: record spans. Used on the event loop.
Source: W3C Trace Context.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from dragoman.types import TraceContext


class Trace:
    """Of one request: every `headers` is a span of its own in the same trace."""

    __slots__ = ("_context", "_request_id")

    def __init__(self, request_id: str, context: TraceContext | None = None) -> None:
        self._request_id = request_id
        self._context = context or TraceContext(os.urandom(16).hex(), is_sampled=True)

    def headers(self) -> Mapping[str, str]:
        """Those of one request to an upstream."""
        context = self._context
        parent = f"00-{context.trace_id}-{os.urandom(8).hex()}-0{int(context.is_sampled)}"
        headers = {"traceparent": parent, "x-request-id": self._request_id}
        return headers | {"tracestate": context.state} if context.state else headers
