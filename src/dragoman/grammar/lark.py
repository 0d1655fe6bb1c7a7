"""Writes a grammar of any kind, with its frame, in llguidance's Lark, for engines with their own compilers."""

from __future__ import annotations

import json
import re
from collections.abc import Set

from dragoman.grammar.compiler import OUTPUT, llguidance_source
from dragoman.types import Grammar

_RULE = "client_output"
_START = re.compile(r"^start:", re.MULTILINE)


def lark_of(grammar: Grammar, end_ids: Set[int] = frozenset()) -> str:
    """The compiled grammar's equivalent in Lark. `end_ids`: tokens allowed at its end. Raises: InvalidParameter."""
    frame, output = json.loads(llguidance_source(grammar))["grammars"]
    schema = output.get("json_schema")
    body = f"%lark {{\n{output['lark_grammar']}\n}}" if schema is None else f"%json {json.dumps(schema)}"
    text = frame["lark_grammar"].replace(OUTPUT, _RULE)
    if end_ids:
        ends = " | ".join(f"<[{token}]>" for token in sorted(end_ids))
        text = _START.sub(f"start: framed ({ends})?\nframed:", text, count=1)
    return f"{text}\n{_RULE}: {body}\n"
