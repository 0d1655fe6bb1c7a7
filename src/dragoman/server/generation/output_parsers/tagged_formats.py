"""Formats of calls with bare text between tags, with their reader. Sources: the chat templates of the models named at each.

Readers run on the event loop, and make JSON of a text by the tool's schema. Grammars are made on any thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from dragoman.server.generation.output_parsers.base import first_marker, num_open
from dragoman.server.generation.output_parsers.call_parser import CallSyntax
from dragoman.server.generation.output_parsers.call_reader import (
    MAX_HEADER_CHARS,
    CallStart,
    MakeReader,
    PiecewiseReader,
    Progress,
)
from dragoman.server.generation.output_parsers.text_values import (
    ARRAY,
    OBJECT,
    STRING,
    End,
    Schema,
    TextRule,
    argument_schemas,
    dumped,
    is_plain,
    kinds,
    resolved,
    text_rule,
    typed,
)
from dragoman.server.generation.output_parsers.tool_format import (
    COMBINING,
    Function,
    Marks,
    ToolFormat,
    WriteCall,
    arguments_schema,
    calls,
    check_enforced,
    literal,
)

_NAME = re.compile(r"[\w.\-]+")
_NAMESPACE = "]<]minimax[>["  # before every tag
_ITEM = "item"  # the tag around an entry of an array

_OPENING = re.compile(rf"\s*{re.escape(_NAMESPACE)}<([^<>/\s]+)>")
_MAX_DEPTH = 32  # of tags within tags; what is deeper stays text
_MAX_RULES = 4  # levels that a grammar writes as tags; what is deeper is JSON


@dataclass(frozen=True, slots=True)
class _TagSyntax:
    """`head` is before the name, which ends with `name_close` or, where that is "", before one of `name_ends`.

    `is_padded`: a line break after `value_begin` and one before `value_end` are not part of the value. `value_end` may name
    the `{key}`. `read` makes JSON of a value's text.
    """

    head: str
    name_close: str
    key_begin: str
    key_end: str
    value_begin: str
    value_end: str
    end: str
    is_padded: bool
    name_ends: tuple[str, ...] = ()
    read: Callable[[str, Any, Mapping[str, Any]], str] = typed


class _TaggedCallReader(PiecewiseReader):
    def __init__(self, start: CallStart, syntax: _TagSyntax) -> None:
        super().__init__(start)
        self._syntax = syntax
        self._read_on = self._head  # consumes what it can, and sets the next method
        self._has_arguments = False
        self._key = ""
        self._value: list[str] = []
        self._streams_value = False

    def _step(self) -> bool:
        return self._read_on()

    def _head(self) -> bool:
        head = self._syntax.head
        if not self._waiting.startswith(head):
            return False if head.startswith(self._waiting) else self._fail()
        self._take(len(head))
        self._read_on = self._read_name
        return True

    def _read_name(self) -> bool:
        close = self._syntax.name_close
        ends = (close,) if close else self._syntax.name_ends
        size = min((found for end in ends if (found := self._waiting.find(end)) >= 0), default=-1)
        if size < 0:
            return self._fail() if len(self._waiting) > MAX_HEADER_CHARS else False
        name = self._waiting[:size].strip()
        if not _NAME.fullmatch(name) or not self._set_name(name):
            return self._fail()
        self._take(size + len(close))
        self._write("{")
        self._read_on = self._between
        return True

    def _between(self) -> bool:
        """Before an argument, or the end."""
        self._skip_space()
        key_begin, end = self._syntax.key_begin, self._syntax.end
        if self._waiting.startswith(end):
            self._take(len(end))
            self._write("}")
            self.progress = Progress.DONE
            return False
        if end.startswith(self._waiting):  # so may a key, of which this would be the beginning
            return False
        if self._waiting.startswith(key_begin):
            self._take(len(key_begin))
            self._read_on = self._read_key
            return True
        return False if key_begin.startswith(self._waiting) else self._fail()

    def _read_key(self) -> bool:
        size = self._waiting.find(self._syntax.key_end)
        if size < 0:
            return self._fail() if len(self._waiting) > MAX_HEADER_CHARS else False
        self._key = self._take(size).strip()
        self._take(len(self._syntax.key_end))
        if not self._key or "<" in self._key:
            return self._fail()
        self._write(f"{', ' if self._has_arguments else ''}{dumped(self._key)}: ")
        self._has_arguments = True
        self._read_on = self._value_tag
        return True

    def _value_tag(self) -> bool:
        begin = self._syntax.value_begin
        if begin:
            self._skip_space()
            if not self._waiting.startswith(begin):
                return False if begin.startswith(self._waiting) else self._fail()
        padding = "\n" if self._syntax.is_padded else ""
        if padding and len(self._waiting) == len(begin):
            return False  # the line break may still come
        self._take(len(begin) + self._waiting.startswith(padding, len(begin)) * len(padding))
        schema, root = self._schema()
        self._streams_value = self._start.streams and kinds(schema, root) == STRING
        self._value.clear()
        if self._streams_value:
            self._write('"')
        self._read_on = self._read_value
        return True

    def _read_value(self) -> bool:
        end = self._syntax.value_end.replace("{key}", self._key)
        size = self._waiting.find(end)
        followers = self._followers()
        if (unclosed := first_marker(self._waiting[: size if size >= 0 else None], followers)) is not None:
            self._add(self._take(unclosed[0]))
            self._end_value()
            self._read_on = self._between
            return True
        if size < 0:
            # The line break before the end mark is not part of the value, so it waits as well.
            padded = ("\n" + end,) if self._syntax.is_padded else ()
            self._add(self._take(len(self._waiting) - num_open(self._waiting, end, *padded, *followers)))
            return False
        if end != self._syntax.value_end and self._is_within(end, size):
            self._add(self._take(size + len(end)))
            return True
        value = self._take(size)
        self._take(len(end))
        self._add(value.removesuffix("\n") if self._syntax.is_padded else value)
        self._end_value()
        self._read_on = self._between
        return True

    def _followers(self) -> list[str]:
        """Lines that end a value whose own end is missing: the next argument that the tool has, or the end of the call."""
        syntax = self._syntax
        if self._start.streams or not syntax.is_padded:
            return []  # a grammar ensures the ends, or values are not on lines of their own
        known = argument_schemas(self._start.schemas.get(self._name, {}))
        nexts = [f"\n{syntax.key_begin}{key}{syntax.key_end}" for key in known if key != self._key]
        return [*nexts, f"\n{syntax.end}"]

    def _is_within(self, end: str, size: int) -> bool:
        """True if the end mark at `size` closes a tag of the same name within the value."""
        value = "".join(self._value) + self._waiting[:size]
        begin = f"{self._syntax.key_begin}{self._key}{self._syntax.key_end}"
        return not self._streams_value and value.count(begin) > value.count(end)

    def _add(self, text: str) -> None:
        if self._streams_value:
            self._write(dumped(text)[1:-1])
        else:
            self._value.append(text)

    def _end_value(self) -> None:
        if self._streams_value:
            self._write('"')
            return
        self._write(self._syntax.read("".join(self._value), *self._schema()))

    def _schema(self) -> tuple[Any, Mapping[str, Any]]:
        root = self._start.schemas.get(self._name, {})
        return argument_schemas(root).get(self._key), root


def _tagged_calls(syntax: _TagSyntax) -> MakeReader:
    return partial(_TaggedCallReader, syntax=syntax)


def _nested_value(text: str, schema: Any, root: Schema, depth: int = _MAX_DEPTH) -> str:
    """The JSON text of a value: of nested tags an object or an array, of anything else what its schema makes of it."""
    entries = _entries(text) if depth else None
    if not entries:
        return typed(text, schema, root)
    schema = _of_kinds(schema, root, OBJECT | ARRAY)
    allowed = kinds(schema, root)
    if all(key == _ITEM for key, _ in entries) and (allowed is None or "array" in allowed):
        items = resolved(_of_kinds(schema, root, ARRAY), root)
        inner = items.get("items") if isinstance(items, Mapping) else None
        return f"[{', '.join(_nested_value(value, inner, root, depth - 1) for _, value in entries)}]"
    known = resolved(_of_kinds(schema, root, OBJECT), root)
    members: dict[str, list[str]] = {}
    for key, value in entries:
        inner = _member_schema(known, key)
        members.setdefault(key, []).append(_nested_value(value, inner, root, depth - 1))
    # A tag that is repeated is an array, as in other XML.
    values = {key: texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]" for key, texts in members.items()}
    return "{" + ", ".join(f"{dumped(key)}: {value}" for key, value in values.items()) + "}"


def _nested_rule(name: str, schema: Any, root: Schema, end: End, marks: Marks, depth: int = _MAX_RULES) -> TextRule:
    """As `text_rule`, with objects and arrays of a plain schema as tags; others are JSON, which reads back the same."""
    found = resolved(schema, root)
    allowed = kinds(found, root)
    if not depth or not isinstance(found, Mapping) or not is_plain(found):
        return text_rule(name, schema, root, end)
    if allowed == ARRAY and isinstance(found.get("items"), Mapping):
        inner = _nested_rule(f"{name}_0", found["items"], root, _end_of(_ITEM, marks), marks, depth - 1)
        return TextRule(f"({_opening_of(_ITEM, marks)} {inner.lark})* {end.lark}", inner.rules)
    properties = found.get("properties")
    if allowed == OBJECT and isinstance(properties, Mapping) and properties and not found.get("additionalProperties"):
        written, rules = [], []
        for number, (key, inner_schema) in enumerate(properties.items()):
            inner = _nested_rule(f"{name}_{number}", inner_schema, root, _end_of(key, marks), marks, depth - 1)
            optional = "" if key in (found.get("required") or ()) else "?"
            written.append(f"({_opening_of(key, marks)} {inner.lark}){optional}")
            rules.append(inner.rules)
        return TextRule(f"{' '.join(written)} {end.lark}", "".join(rules))
    return text_rule(name, schema, root, end)


def _opening_of(key: str, marks: Marks) -> str:
    return f"{marks.lark(_NAMESPACE)} {literal(f'<{key}>')}"


def _end_of(key: str, marks: Marks) -> End:
    return End(marks[_NAMESPACE], after=f"</{key}>")


def _entries(text: str) -> list[tuple[str, str]] | None:
    """None if the text is anything else than tags."""
    entries: list[tuple[str, str]] = []
    position = 0
    while match := _OPENING.match(text, position):
        begin, close = f"{_NAMESPACE}<{match[1]}>", f"{_NAMESPACE}</{match[1]}>"
        end = text.find(close, match.end())
        while end >= 0 and text.count(begin, match.end(), end) > text.count(close, match.end(), end):
            end = text.find(close, end + len(close))
        if end < 0:
            return None
        entries.append((match[1], text[match.end() : end]))
        position = end + len(close)
    return entries if entries and not text[position:].strip() else None


def _of_kinds(schema: Any, root: Schema, wanted: frozenset[str]) -> Any:
    """The branch of a schema with alternatives that allows such values, or the schema itself."""
    found = resolved(schema, root)
    for key in ("anyOf", "oneOf", "allOf"):
        branches = found.get(key) if isinstance(found, Mapping) else None
        for branch in branches if isinstance(branches, list) else ():
            if (kinds(branch, root) or frozenset()) & wanted:
                return branch
    return found


def _member_schema(schema: Any, key: str) -> Any:
    if not isinstance(schema, Mapping):
        return None
    properties = schema.get("properties")
    named = properties.get(key) if isinstance(properties, Mapping) else None
    return schema.get("additionalProperties") if named is None else named


_FREE_KEY = r"/[^<>=\"\s]{1,64}/"  # of an argument that the schema does not name

_CODER_TAGS = _TagSyntax("<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>", is_padded=True)
_SEED_TAGS = _TagSyntax("<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>", is_padded=False)
_MINIMAX_TAGS = _TagSyntax(
    '<invoke name="', '">', '<parameter name="', '">', "", "</parameter>", "</invoke>", is_padded=False
)
_MINIMAX3_TAGS = _TagSyntax(
    f'{_NAMESPACE}<invoke name="',
    '">',
    f"{_NAMESPACE}<",
    ">",
    "",
    f"{_NAMESPACE}</{{key}}>",
    f"{_NAMESPACE}</invoke>",
    is_padded=False,
    read=_nested_value,
)
_GLM_TAGS = _TagSyntax(
    head="",
    name_close="",
    key_begin="<arg_key>",
    key_end="</arg_key>",
    value_begin="<arg_value>",
    value_end="</arg_value>",
    end="</tool_call>",
    is_padded=False,
    name_ends=("\n", "<arg_key>", "</tool_call>"),
)


def _writer(tags: _TagSyntax) -> WriteCall:
    """A call with each argument on a line of its own, in the order of the schema."""

    def call(rule: str, function: Function, marks: Marks) -> TextRule:
        schema = arguments_schema(function)
        check_enforced(function, schema)
        end = End(marks[tags.value_end], "\n" if tags.is_padded else "")
        written, rules = [], []
        for number, (key, value_schema) in enumerate(argument_schemas(schema).items()):
            value = text_rule(f"{rule}_{number}", value_schema, schema, end)
            optional = "" if key in (schema.get("required") or ()) else "?"
            written.append(f'({_opening(tags, literal(key), marks)} {value.lark} "\\n"){optional}')
            rules.append(value.rules)
        if other := schema.get("additionalProperties", not written and COMBINING & schema.keys()):
            value = text_rule(f"{rule}_other", other, schema, end)
            written.append(f'({_opening(tags, _FREE_KEY, marks)} {value.lark} "\\n")*')
            rules.append(value.rules)
        head = literal(f"{tags.head}{function['name']}{tags.name_close}\n")
        return TextRule(f"{head} {' '.join(written)} {marks.lark(tags.end)}", "".join(rules))

    return call


def _minimax3_call(rule: str, function: Function, marks: Marks) -> TextRule:
    """Arguments that the schema does not name are left out: no grammar repeats a name."""
    schema = arguments_schema(function)
    check_enforced(function, schema)
    written, rules = [], []
    for number, (key, value_schema) in enumerate(argument_schemas(schema).items()):
        value = _nested_rule(f"{rule}_{number}", value_schema, schema, _end_of(key, marks), marks)
        optional = "" if key in (schema.get("required") or ()) else "?"
        written.append(f"({_opening_of(key, marks)} {value.lark}){optional}")
        rules.append(value.rules)
    mark, head = marks.lark(_NAMESPACE), literal(f'<invoke name="{function["name"]}">')
    return TextRule(f'{mark} {head} {" ".join(written)} {mark} "</invoke>"', "".join(rules))


def _opening(tags: _TagSyntax, key: str, marks: Marks) -> str:
    """The text before a value, as Lark; so is `key`."""
    value_begin = f'"\\n" {marks.lark(tags.value_begin)}' if tags.value_begin else ""
    padding = '"\\n"' if tags.is_padded else ""
    return f"{marks.lark(tags.key_begin)} {key} {marks.lark(tags.key_end)} {value_begin} {padding}"


def _one_in_each_block(name: str, opening: str, closing: str, tags: _TagSyntax) -> ToolFormat:
    """A format with marks around each call."""
    return ToolFormat(
        name,
        CallSyntax(
            opens=(opening,), starts=((tags.head, _tagged_calls(tags)),), closes=(closing,), unopened=(tags.head,)
        ),
        _writer(tags),
        lambda marks, many: rf'"\n" call "\n" {marks.lark(closing)}',
        between_blocks="\n",
    )


# Qwen/Qwen3-Coder-30B-A3B-Instruct, Qwen3.5, Nemotron 3, Step 3.5.
QWEN3_CODER = _one_in_each_block("qwen3_coder", "<tool_call>", "</tool_call>", _CODER_TAGS)
# ByteDance-Seed/Seed-OSS-36B-Instruct.
SEED_OSS = _one_in_each_block("seed_oss", "<seed:tool_call>", "</seed:tool_call>", _SEED_TAGS)
# MiniMaxAI/MiniMax-M2 and M2.1.
MINIMAX_M2 = ToolFormat(
    "minimax_m2",
    CallSyntax(
        opens=("<minimax:tool_call>",),
        starts=((_MINIMAX_TAGS.head, _tagged_calls(_MINIMAX_TAGS)),),
        closes=("</minimax:tool_call>",),
        repeats=True,
        unopened=(_MINIMAX_TAGS.head,),
    ),
    _writer(_MINIMAX_TAGS),
    lambda marks, many: rf'"\n" {calls(literal(chr(10)), many)} "\n" {marks.lark("</minimax:tool_call>")}',
)
# MiniMaxAI/MiniMax-M3: a mark before every tag, arguments named by their tags, objects and arrays of tags again.
MINIMAX_M3 = ToolFormat(
    "minimax_m3",
    CallSyntax(
        opens=(f"{_NAMESPACE}<tool_call>",),
        starts=((_MINIMAX3_TAGS.head, _tagged_calls(_MINIMAX3_TAGS)),),
        closes=(f"{_NAMESPACE}</tool_call>",),
        repeats=True,
        unopened=(_MINIMAX3_TAGS.head,),
    ),
    _minimax3_call,
    lambda marks, many: (
        rf'"<tool_call>\n" {calls(literal(chr(10)), many)} "\n" {marks.lark(_NAMESPACE)} "</tool_call>"'
    ),
    told_by=_NAMESPACE,
)
# zai-org/GLM-4.5 and 4.6.
GLM45 = ToolFormat(
    "glm45",
    CallSyntax(opens=("<tool_call>",), starts=(("", _tagged_calls(_GLM_TAGS)),)),
    _writer(_GLM_TAGS),
    lambda marks, many: "call",
    between_blocks="\n",
    marks=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"),
)
