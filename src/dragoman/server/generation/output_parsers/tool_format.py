"""What a tool call format is: the protocol that `hermes`, `mistral` and `llama3` implement.

Does: say how calls look, to the parser and to the grammar. Does not: parse or compile. Chosen by `choose`, once per model.
"""

from __future__ import annotations

import secrets
from typing import Protocol

from dragoman.server.generation.output_parsers.call_parser import CallSyntax


class ToolFormat(Protocol):
    """One way of writing tool calls. Immutable."""

    @property
    def name(self) -> str:
        """What `option.tool_call_parser` calls it."""
        ...

    @property
    def opens(self) -> str:
        """The marker before calls; "" = there is none, so nothing tells a call from text before it is complete."""
        ...

    @property
    def syntax(self) -> CallSyntax:
        """What the parser looks for."""
        ...

    @property
    def arguments_key(self) -> str:
        """The name of the arguments in a call's object."""
        ...

    def block(self, *, many: bool) -> str:
        """What follows the marker, as a Lark expression over the rule `call`: one call, or with `many` any number."""
        ...

    @property
    def between_blocks(self) -> str | None:
        """The text between two blocks, each with its marker; None = there is only one block, with all the calls."""
        ...

    def new_id(self) -> str:
        """A fresh id for a call, as the format's chat templates take it back."""
        ...


def call_id() -> str:
    """A random id in OpenAI's form."""
    return f"call_{secrets.token_hex(12)}"
