"""LMI's `djl_python.output_formatter`."""

from dragoman.hooks.marks import output_formatter
from dragoman.hooks.request_io import RequestInput, RequestOutput, Sequence, TextGenerationOutput, TextInput, Token

__all__ = [
    "RequestInput",
    "RequestOutput",
    "Sequence",
    "TextGenerationOutput",
    "TextInput",
    "Token",
    "output_formatter",
]
