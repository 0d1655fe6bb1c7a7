"""Names that an operator's own file may import from dragoman: the decorators, and the objects that its functions see.

Does: name them. Does not: do anything; LMI's API does (`server.apis.lmi.hooks`), whose clients such files are written for.
Imported by operators' files only.
"""

from dragoman.server.apis.lmi.hooks import (
    Input,
    Output,
    RequestInput,
    RequestOutput,
    Sequence,
    TextGenerationOutput,
    TextInput,
    Token,
    create_non_stream_output,
    create_stream_chunk_output,
    decode,
    encode,
    handle_streaming_response,
    input_formatter,
    output_formatter,
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
