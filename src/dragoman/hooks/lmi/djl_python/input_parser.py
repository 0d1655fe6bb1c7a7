"""LMI's `djl_python.input_parser`."""

from dragoman.hooks.inputs import Input
from dragoman.hooks.marks import input_formatter
from dragoman.hooks.request_io import RequestInput, RequestOutput, Sequence, TextGenerationOutput, TextInput, Token

__all__ = [
    "Input",
    "RequestInput",
    "RequestOutput",
    "Sequence",
    "TextGenerationOutput",
    "TextInput",
    "Token",
    "input_formatter",
]
