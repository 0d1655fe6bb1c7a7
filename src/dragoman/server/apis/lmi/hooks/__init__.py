"""An operator's own code: loading it, the objects that it sees, the threads it runs on. Knows nothing of the server.

Re-exports what `operator` and the composition root use; `dragoman.hooks` has the names for operators' files.
"""

from dragoman.server.apis.lmi.hooks.async_utils import (
    create_non_stream_output,
    create_stream_chunk_output,
    handle_streaming_response,
)
from dragoman.server.apis.lmi.hooks.content import decode, encode
from dragoman.server.apis.lmi.hooks.handler import Handler, StartRefused
from dragoman.server.apis.lmi.hooks.handler_loop import HandlerLoop
from dragoman.server.apis.lmi.hooks.inputs import Input
from dragoman.server.apis.lmi.hooks.loader import HookLoadError, Hooks, is_own_entry_point, load_hooks, own_traceback
from dragoman.server.apis.lmi.hooks.marks import input_formatter, output_formatter
from dragoman.server.apis.lmi.hooks.outputs import Output
from dragoman.server.apis.lmi.hooks.pool import HookPool
from dragoman.server.apis.lmi.hooks.request_io import (
    RequestInput,
    RequestOutput,
    Sequence,
    TextGenerationOutput,
    TextInput,
    Token,
)
from dragoman.server.apis.lmi.hooks.tokenizer import HookTokenizer

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
    "is_own_entry_point",
    "load_hooks",
    "output_formatter",
    "own_traceback",
]
