"""The format of Mistral: `[TOOL_CALLS]`, then an array of JSON objects with all the calls.

Does: describe it. Does not: parse. Source: the chat templates of mistralai/Mistral-7B-Instruct-v0.3 and its successors.
"""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass

from dragoman.server.generation.output_parsers.call_parser import CallSyntax

_ID_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9  # the templates refuse ids of any other length


_SYNTAX = CallSyntax(opens="[TOOL_CALLS]", is_list=True, separators=",")


@dataclass(frozen=True, slots=True)
class Mistral:
    """Implements `ToolFormat`."""

    name: str = "mistral"
    opens: str = "[TOOL_CALLS]"
    syntax: CallSyntax = _SYNTAX
    arguments_key: str = "arguments"
    between_blocks: str | None = None

    def block(self, *, many: bool) -> str:
        """An array of calls."""
        return '/ ?/ "[" call (/, ?/ call)* "]"' if many else '/ ?/ "[" call "]"'

    def new_id(self) -> str:
        """Nine letters and digits."""
        return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
