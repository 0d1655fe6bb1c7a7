"""A grammar as one text, for engines that compile grammars by themselves.

Does: write a grammar of any kind, with its frame, as one text of llguidance's Lark. Does not: compile; who asks has done so.
Called by engines, on any thread.
"""

from __future__ import annotations

import json

from dragoman.grammar.compiler import OUTPUT, llguidance_source
from dragoman.types import Grammar

_RULE = "client_output"


def lark_of(grammar: Grammar) -> str:
    """The grammar, which compiles, as Lark; it allows what the compiled one does. Raises: InvalidParameter."""
    frame, output = json.loads(llguidance_source(grammar))["grammars"]
    schema = output.get("json_schema")
    body = f"%lark {{\n{output['lark_grammar']}\n}}" if schema is None else f"%json {json.dumps(schema)}"
    return f"{frame['lark_grammar'].replace(OUTPUT, _RULE)}\n{_RULE}: {body}\n"
