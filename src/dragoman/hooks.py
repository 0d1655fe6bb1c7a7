"""Exports the names that an operator's file may import: LMI's decorators, and the objects that its functions get."""

from dragoman.server.apis.lmi.hooks.handler_io import (
    Input,
    Output,
    create_non_stream_output,
    create_stream_chunk_output,
    decode,
    encode,
    handle_streaming_response,
)
from dragoman.server.apis.lmi.hooks.lmi_package import input_formatter, output_formatter
from dragoman.server.apis.lmi.hooks.request_io import (
    RequestInput,
    RequestOutput,
    Sequence,
    TextGenerationOutput,
    TextInput,
    Token,
)

__all__ = [
    "Input",
    "Output",
    "RequestInput",
    "RequestOutput",
    "Sequence",
    "TextGenerationOutput",
    "TextInput",
    "Token",
    "create_non_stream_output",
    "create_stream_chunk_output",
    "decode",
    "encode",
    "handle_streaming_response",
    "input_formatter",
    "output_formatter",
]
