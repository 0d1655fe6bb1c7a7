"""Builds the grammar of an answer that may or must call tools, in the model's own format.

Does: put together reasoning, free text, the client's own constraint and calls whose arguments follow the tools' schemas.
Does not: compile; the engine's compiler does. Called by `output_format` while a request is prepared, on any thread.
The grammars are Lark as llguidance reads it: `%json` is a JSON schema, `<[7]>` a control token, `[lazy]` the shortest match.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dragoman.server.generation.output_parsers.base import Marker
from dragoman.server.generation.output_parsers.reasoning import Opening, Preamble, ReasoningFormat
from dragoman.server.generation.output_parsers.tool_format import ToolFormat
from dragoman.types import Grammar

Tool = Mapping[str, Any]

_COMBINING = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties")


@dataclass(frozen=True, slots=True)
class Wish:
    """What one request asks of the answer's form. `own`: the client's constraint on answers that call no tool."""

    tools: Sequence[Tool]
    is_forced: bool  # a tool must be called
    is_parallel: bool  # more than one may be
    own: Grammar | None = None


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """Makes grammars for one model. `opens` None = the format has no marker before calls."""

    tool_format: ToolFormat
    opens: Marker | None
    reasoning: ReasoningFormat | None

    def forced(self, wish: Wish, opening: Opening) -> Grammar:
        """The grammar of an answer that is calls and nothing else, but for reasoning before them."""
        preamble = self._preamble(opening)
        lark = f"start: {preamble.lark}{self._calls(wish)}\n{preamble.rules}{self._call_rules(wish.tools)}"
        return Grammar("lark", lark, covers_tool_calls=True)

    def optional(self, wish: Wish, opening: Opening) -> Grammar | None:
        """The grammar of an answer that may call tools; None if calls cannot be told from text as they begin."""
        preamble = self._preamble(opening)
        if wish.own is not None:
            start = f"start: {preamble.lark}({self._calls(wish)} | @output)\n"
            frame = f"{start}{preamble.rules}{self._call_rules(wish.tools)}"
            return replace(wish.own, frame=frame, covers_tool_calls=self.opens is not None)
        if self.opens is None:
            return None
        block = self.tool_format.block(many=wish.is_parallel)
        repeats = wish.is_parallel and self.tool_format.between_blocks is not None
        after = f"{block} (trigger {block})* TEXT" if repeats else block
        body = f"(TEXT | trigger {after})"
        rules = f"{preamble.rules}{_text_rules(self.opens)}{self._call_rules(wish.tools)}"
        if self.reasoning is None or not preamble.is_optional or self.reasoning.begin.token_id is not None:
            return Grammar("lark", f"start: {preamble.lark}{body}\n{rules}", covers_tool_calls=True)
        # An answer that thinks first must not pass for free text, where a mark that the reasoning mentions would count.
        start = f"start: TEXT_FIRST | trigger_first {after} | {preamble.thought} {body}\n"
        rules = f"{_first_rules(self.opens, self.reasoning.begin)}{rules}"
        return Grammar("lark", start + rules, covers_tool_calls=True)

    def _preamble(self, opening: Opening) -> Preamble:
        return Preamble("", "") if self.reasoning is None else self.reasoning.preamble(opening)

    def _calls(self, wish: Wish) -> str:
        """One call or, in parallel, any number of them, with the markers."""
        head = "" if self.opens is None else f"{self.opens.lark} "
        block = head + self.tool_format.block(many=wish.is_parallel)
        separator = self.tool_format.between_blocks
        return f"{block} ({_literal(separator)} {block})*" if wish.is_parallel and separator is not None else block

    def _call_rules(self, tools: Sequence[Tool]) -> str:
        """The rule `call`: one of the tools with arguments of its schema, spaced as templates print JSON."""
        names = " | ".join(f"call_{i}" for i in range(len(tools)))
        return f"call: {names}\n" + "".join(self._call_rule(i, tool["function"]) for i, tool in enumerate(tools))

    def _call_rule(self, index: int, function: Mapping[str, Any]) -> str:
        name = json.dumps(function["name"])
        head = _literal(f'{{"name": {name}, "{self.tool_format.arguments_key}": ')
        return f'call_{index}: {head} %json {json.dumps(arguments_schema(function))} "}}"\n'


def arguments_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """The schema that a function's arguments are held to, with the compiler's settings.

    Without `strict` keywords that the compiler does not know are passed over; nothing may be added to the properties that
    are named. White space is fixed: with a free choice of it, small models write blanks for ever.
    """
    given = function.get("parameters") or {}
    schema = {"type": "object", "properties": {}, **given} if isinstance(given, dict) else {"type": "object"}
    if not any(key in schema for key in _COMBINING):
        schema.setdefault("additionalProperties", False)
    schema["x-guidance"] = {
        "whitespace_flexible": False,
        "item_separator": ", ",
        "key_separator": ": ",
        "coerce_one_of": True,
        "lenient": not function.get("strict"),
    }
    return schema


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _text_rules(opens: Marker) -> str:
    """Free text without the marker, and free text up to its first one."""
    if opens.token_id is not None:
        return f"TEXT: /(?s:.*)/\ntrigger: TEXT {opens.lark}\n"
    up_to = f"UP_TO: /(?s:.*){opens.regex}/\ntrigger[lazy]: UP_TO\n"
    return f"TEXT: ~/(?s:.*){opens.regex}(?s:.*)/\n{up_to}"


def _first_rules(opens: Marker, thought: Marker) -> str:
    """The same for text at the beginning of an answer, where it must not look like reasoning."""
    other = f"~/\\s*{thought.regex}(?s:.*)/"
    text = f"TEXT_FIRST: TEXT & {other}\n"
    if opens.token_id is not None:
        return f"{text}trigger_first: TEXT_FIRST {opens.lark}\n"
    return f"{text}UP_TO_FIRST: UP_TO & {other}\ntrigger_first[lazy]: UP_TO_FIRST\n"
