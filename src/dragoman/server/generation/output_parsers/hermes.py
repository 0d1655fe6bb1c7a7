"""The format of Hermes and Qwen: `<tool_call>` and `</tool_call>` around a JSON object, once per call.

Does: describe it. Does not: parse. Source: the chat templates of NousResearch/Hermes-2-Pro and Qwen/Qwen2.5-Instruct.
"""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.server.generation.output_parsers.call_parser import CallSyntax
from dragoman.server.generation.output_parsers.tool_format import call_id

_SYNTAX = CallSyntax(opens="<tool_call>", closes="</tool_call>")


@dataclass(frozen=True, slots=True)
class Hermes:
    """Implements `ToolFormat`."""

    name: str = "hermes"
    opens: str = "<tool_call>"
    syntax: CallSyntax = _SYNTAX
    arguments_key: str = "arguments"
    between_blocks: str | None = "\n"

    def block(self, *, many: bool) -> str:
        """One call: there is a marker before each."""
        return r'"\n" call "\n</tool_call>"'

    def new_id(self) -> str:
        """Any id will do."""
        return call_id()
