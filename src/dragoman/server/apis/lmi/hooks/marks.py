"""The two decorators by which a model.py tells which of its functions are formatters. The functions stay as they are.

Source: LMI input and output formatter pages; the attribute names are LMI's, so functions marked by hand count too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

INPUT_MARK = "is_input_formatter"
OUTPUT_MARK = "is_output_formatter"


def input_formatter(function: Function) -> Function:
    """The function itself, marked as the one that reads requests: `f(input_item, **kwargs) -> TextInput`."""
    setattr(function, INPUT_MARK, True)
    return function


def output_formatter(function: Function) -> Function:
    """The function itself, marked as the one that writes answers: `f(request_output: TextGenerationOutput) -> str`."""
    setattr(function, OUTPUT_MARK, True)
    return function
