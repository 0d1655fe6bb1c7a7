"""LMI's `djl_python.async_utils`."""

from dragoman.server.apis.lmi.hooks.async_utils import (
    create_non_stream_output,
    create_stream_chunk_output,
    handle_streaming_response,
)

__all__ = ["create_non_stream_output", "create_stream_chunk_output", "handle_streaming_response"]
