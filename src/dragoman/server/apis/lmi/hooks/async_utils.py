"""The helpers by which an asynchronous handler makes its answers, LMI's `djl_python.async_utils`.

Called by the operator's code, on its event loop. Source: LMI's async handlers, v0.36.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from typing import Any

from dragoman.server.apis.lmi.hooks.outputs import JSON, JSONLINES, MODEL_ERROR, Output

__all__ = ["create_non_stream_output", "create_stream_chunk_output", "handle_streaming_response"]

logger = logging.getLogger("dragoman.hooks")


def create_non_stream_output(
    data: str | Mapping[str, Any],
    properties: Mapping[str, Any] | None = None,
    error: str | None = None,
    code: int | None = None,
) -> Output:
    """A whole answer: `data` as a line of JSON, or the text of it; with `error` LMI's error object in its place."""
    output = _output(data, JSON, error, code)
    for name, value in (properties or {}).items():
        output.add_property(name, value)
    return output


def create_stream_chunk_output(
    data: str | Mapping[str, Any], last_chunk: bool, error: str | None = None, code: int | None = None
) -> Output:
    """One chunk of a streamed answer; nothing is taken after the last one, or after one with an `error`."""
    output = _output(data, JSONLINES, error, code)
    output.is_last = last_chunk
    return output


async def handle_streaming_response(
    response: AsyncIterable[Any],
    stream_output_formatter: Callable[..., Any],
    accumulate_chunks: bool = False,
    **kwargs: Any,
) -> AsyncGenerator[Output, None]:
    """The chunks of a stream, each as the formatter writes it; if that raises, the stream ends with its error.

    The formatter is called with a chunk and `kwargs`, and returns its text and whether it is the last one; with
    `accumulate_chunks` it is also given `history`, and returns the new one as a third value.
    """
    history: list[Any] = []
    async for chunk in response:
        try:
            if accumulate_chunks:
                written, is_last, history = stream_output_formatter(chunk, history=history, **kwargs)
            else:
                written, is_last = stream_output_formatter(chunk, **kwargs)
        except Exception as error:  # hook call: the operator's formatter
            logger.warning("the stream's output formatter failed", exc_info=error)
            yield create_stream_chunk_output("", True, error=str(error), code=MODEL_ERROR)
            return
        yield create_stream_chunk_output(written, is_last)
        if is_last:
            return


def _output(data: str | Mapping[str, Any], media_type: str, error: str | None, code: int | None) -> Output:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    output = Output(200 if code is None else code).add(text + "\n").add_property("Content-Type", media_type)
    output.failure = error or None
    return output
