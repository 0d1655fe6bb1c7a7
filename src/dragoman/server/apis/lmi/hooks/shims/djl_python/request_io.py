"""LMI's `djl_python.request_io`."""

from dragoman.server.apis.lmi.hooks.request_io import (
    RequestInput,
    RequestOutput,
    Sequence,
    TextGenerationOutput,
    TextInput,
    Token,
)

__all__ = ["RequestInput", "RequestOutput", "Sequence", "TextGenerationOutput", "TextInput", "Token"]
