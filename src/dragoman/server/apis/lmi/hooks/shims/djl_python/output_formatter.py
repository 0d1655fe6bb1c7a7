"""LMI's `djl_python.output_formatter`."""

from dragoman.server.apis.lmi.hooks.marks import output_formatter
from dragoman.server.apis.lmi.hooks.request_io import (
    RequestInput,
    RequestOutput,
    Sequence,
    TextGenerationOutput,
    TextInput,
    Token,
)

__all__ = [
    "RequestInput",
    "RequestOutput",
    "Sequence",
    "TextGenerationOutput",
    "TextInput",
    "Token",
    "output_formatter",
]
