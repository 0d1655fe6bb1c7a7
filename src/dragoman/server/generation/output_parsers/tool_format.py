"""A tool call format as data, for the parser and for the grammar. `choose` picks one, once per model."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.errors import InvalidParameter
from dragoman.schemas.enforceable import enforceable, with_settings
from dragoman.server.generation.output_parsers.base import Marker
from dragoman.server.generation.output_parsers.call_parser import CallSyntax
from dragoman.server.generation.output_parsers.text_values import TextRule, argument_schemas, dumped, unenforced

Function = Mapping[str, Any]
"""A tool's `name`, `parameters` and `strict`, as OpenAI writes them."""

COMBINING = frozenset(("$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties"))


class Marks(dict[str, Marker]):
    """The marks of one model by their text. Some are control tokens, which a grammar has to name by their id."""

    def __missing__(self, text: str) -> Marker:
        return Marker(text)

    def lark(self, text: str) -> str:
        return self[text].lark


WriteCall = Callable[[str, Function, Marks], TextRule]
"""(rule name, function, marks) -> the grammar of one call; names of the rules that it needs begin with that name."""

WriteBlock = Callable[[Marks, bool], str]
"""(marks, many) -> the text after the opening mark, as a Lark expression over the rule `call`: one call, or any number."""


def call_id() -> str:
    """A random id in OpenAI's form."""
    return f"call_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way of writing tool calls. `name`: as in `option.tool_call_parser`.

    `between_blocks`: the text between two blocks, None = one block has all calls. `marks`: others that may be control
    tokens. `marked`: a mark begins a call, so that a grammar can enforce the format after it. `told_by`: that mark,
    where the syntax's marks begin with it, or only one is meant. `new_id`: as the chat templates take it back.
    """

    name: str
    syntax: CallSyntax
    call: WriteCall
    block: WriteBlock
    between_blocks: str | None = None
    marks: tuple[str, ...] = ()
    marked: bool = True
    told_by: str = ""
    new_id: Callable[[], str] = field(default=call_id)

    @property
    def all_marks(self) -> tuple[str, ...]:
        return (
            *filter(None, (self.told_by,)),
            *self.syntax.opens,
            *self.syntax.call_closes,
            *self.syntax.closes,
            *self.marks,
        )


def arguments_rule(function: Function) -> str:
    return f"%json {json.dumps(with_settings(arguments_schema(function)))}"


def arguments_schema(function: Function) -> dict[str, Any]:
    """Allows named properties only. Parts that the compiler does not know are left out; they were reported before."""
    parameters = enforceable(function.get("parameters") or {}).schema
    schema = {"type": "object", "properties": {}, **parameters} if isinstance(parameters, dict) else {"type": "object"}
    if not COMBINING & schema.keys():
        schema.setdefault("additionalProperties", False)
    schema.pop("x-guidance", None)
    return schema


def check_enforced(function: Function, schema: Mapping[str, Any]) -> None:
    """Raises: InvalidParameter if the function is strict and the schema demands of a text what no grammar can enforce."""
    if not function.get("strict"):
        return
    for key, value_schema in argument_schemas(schema).items():
        if beyond := unenforced(value_schema, schema):
            raise InvalidParameter(
                f"{beyond} of argument {key} of strict function {function['name']} cannot be enforced in the model's "
                "tool call format: strings may have enum, const, minLength, maxLength and pattern",
                param="tools",
            )


def written_list(separator: str = "/, ?/", blank: str = "/ ?/") -> WriteBlock:
    """A block that is an array of calls, with the Lark expressions between two calls and before the first bracket."""
    return lambda marks, many: f'{blank} "[" {calls(separator, many)} "]"'


def calls(separator: str, many: bool) -> str:
    """A Lark expression for one call or, with `many`, any number of them; `separator` is Lark, too."""
    return f"call ({separator} call)*" if many else "call"


def closed(write: WriteBlock, mark: str) -> WriteBlock:
    return lambda marks, many: f"{write(marks, many)} {marks.lark(mark)}"


def literal(text: str) -> str:
    return dumped(text)
