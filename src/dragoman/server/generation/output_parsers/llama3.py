"""The format of Llama 3: the answer is a JSON object with `parameters`, or several with semicolons between them.

Does: describe it, and the plain form of it that serves models whose own format is unknown. Does not: parse.
Source: the model card and chat template of meta-llama/Llama-3.1-8B-Instruct; `<|python_tag|>` may stand before the object.
"""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.server.generation.output_parsers.call_parser import CallSyntax
from dragoman.server.generation.output_parsers.tool_format import call_id

_SYNTAX = CallSyntax(opens="<|python_tag|>", separators=";,", is_bare=True)


@dataclass(frozen=True, slots=True)
class Llama3:
    """Implements `ToolFormat`. Models write the marker or not, so it decides nothing."""

    name: str = "llama3_json"
    opens: str = ""
    syntax: CallSyntax = _SYNTAX
    arguments_key: str = "parameters"
    between_blocks: str | None = None

    def block(self, *, many: bool) -> str:
        """Calls with semicolons between them."""
        return 'call ("; " call)*' if many else "call"

    def new_id(self) -> str:
        """Any id will do."""
        return call_id()


PLAIN_JSON = Llama3(name="json", syntax=CallSyntax(separators=";,", is_bare=True), arguments_key="arguments")
"""For models whose format is unknown: what a grammar makes them write can be read back."""
