"""Turns encoded objects into the bytes of a stream: server-sent events, JSON lines, plain chunks.

Does: framing only. Does not: know what the objects mean. Called by the dialects' encoders, on the event loop.
"""

from __future__ import annotations

SSE_MEDIA_TYPE = "text/event-stream"
JSONLINES_MEDIA_TYPE = "application/jsonlines"  # exact: djl's own client compares it, so no charset
NDJSON_MEDIA_TYPE = "application/x-ndjson"  # what Ollama calls JSON lines
JSON_MEDIA_TYPE = "application/json"
TEXT_MEDIA_TYPE = "text/plain; charset=utf-8"

SSE_COMMENT = b": keep-alive\n\n"  # WHATWG HTML, 9.2.7: readers drop it, and what is between sees that the line lives
SSE_DONE = b"data: [DONE]\n\n"


def sse(payload: bytes) -> bytes:
    """One server-sent event. Exactly one space after the colon: several clients slice at offset 6."""
    return b"data: " + payload + b"\n\n"


def jsonline(payload: bytes) -> bytes:
    """One JSON line; the newline is never left out, line readers wait for it for ever."""
    return payload + b"\n"
