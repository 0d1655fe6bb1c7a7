"""Takes a model's output apart into reasoning, content and tool calls, and constrains it to what can be taken apart."""

from dragoman.server.generation.output_parsers.choose import (
    AUTO,
    NONE,
    REASONING_FORMATS,
    TOOL_FORMATS,
    choose_output_format,
)
from dragoman.server.generation.output_parsers.output_format import OutputFormat

__all__ = ["AUTO", "NONE", "REASONING_FORMATS", "TOOL_FORMATS", "OutputFormat", "choose_output_format"]
