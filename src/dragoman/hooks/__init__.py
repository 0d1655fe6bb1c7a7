"""Custom pre- and post-processing: an operator's formatters around the LMI routes. Re-exports the public names."""

from dragoman.hooks.content import decode, encode
from dragoman.hooks.dialect import Fields, HookedDialect, HookOptions, LmiParser
from dragoman.hooks.inputs import Input
from dragoman.hooks.loader import HookLoadError, Hooks, load_hooks
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
    "Fields",
    "HookLoadError",
    "HookOptions",
    "HookPool",
    "HookTokenizer",
    "HookedDialect",
    "Hooks",
    "Input",
    "LmiParser",
    "Output",
    "RequestInput",
    "RequestOutput",
    "Sequence",
    "TextGenerationOutput",
    "TextInput",
    "Token",
    "decode",
    "encode",
    "input_formatter",
    "load_hooks",
    "output_formatter",
]
