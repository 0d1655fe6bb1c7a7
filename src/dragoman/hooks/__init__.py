"""An operator's own code: loading it, the objects that it sees, the threads it runs on. Knows nothing of the server.

Re-exports the public names.
"""

from dragoman.hooks.async_utils import (
    create_non_stream_output,
    create_stream_chunk_output,
    handle_streaming_response,
)
from dragoman.hooks.content import decode, encode
from dragoman.hooks.handler import Handler, StartRefused
from dragoman.hooks.handler_loop import HandlerLoop
from dragoman.hooks.inputs import Input
from dragoman.hooks.loader import HookLoadError, Hooks, load_hooks, own_traceback
from dragoman.hooks.marks import input_formatter, output_formatter
from dragoman.hooks.outputs import Output
from dragoman.hooks.pool import HookPool
from dragoman.hooks.request_io import (
    RequestInput,
    RequestOutput,
    Sequence,
    TextGenerationOutput,
    TextInput,
    Token,
)
from dragoman.hooks.tokenizer import HookTokenizer

__all__ = [
    "Handler",
    "HandlerLoop",
    "HookLoadError",
    "HookPool",
    "HookTokenizer",
    "Hooks",
    "Input",
    "Output",
    "RequestInput",
    "RequestOutput",
    "Sequence",
    "StartRefused",
    "TextGenerationOutput",
    "TextInput",
    "Token",
    "create_non_stream_output",
    "create_stream_chunk_output",
    "decode",
    "encode",
    "handle_streaming_response",
    "input_formatter",
    "load_hooks",
    "output_formatter",
    "own_traceback",
]
