"""Translates llama.cpp's notation of grammars, GBNF, into Lark; reports errors with their line.

Rules that refer only to terminals become terminals, which the compiler follows faster. Names are new, since in Lark
they distinguish terminals from rules, and `start` has a meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

# Blanks within the line only: if they crossed line ends, a source of empty lines would take quadratic time.
RULE = re.compile(r"^[^\S\n]*[\w-]+\s*::=", re.MULTILINE)

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|\#[^\n]*)|(?P<line>\n)|(?P<rule>[\w-]+)\s*::=|(?P<name>[\w-]+)|(?P<text>"(?:[^"\\\n]|\\.)*")
    |(?P<class>\[(?:[^\]\\\n]|\\.)*\])|(?P<repeat>[*+?]|\{\s*\d+\s*(?:,\s*\d*\s*)?\})|(?P<sign>[()|.])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_SIMPLE = {"n": "\n", "r": "\r", "t": "\t", **{sign: sign for sign in '"\\[]-^'}}
_IN_CLASSES = frozenset("]\\^[&~-/")  # special characters of regular expressions and Lark
_MAX_SHOWN = 40


class GbnfError(ValueError):
    """An error in a grammar; one line."""


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


@dataclass(slots=True)
class _Rule:
    """A rule in Lark. `names`: positions in `parts` of other rules' names, with their lines."""

    parts: list[str] = field(default_factory=list)
    names: dict[int, tuple[str, int]] = field(default_factory=dict)
    depth: int = 0  # of open brackets

    @property
    def is_open(self) -> bool:
        return not self.parts or self.parts[-1] in ("(", "|")


def gbnf_to_lark(source: str) -> str:
    """Raises: GbnfError."""
    rules = _rules(source)
    if "root" not in rules:
        raise GbnfError("it has no rule named root")
    for rule in rules.values():
        for name, line in rule.names.values():
            if name not in rules:
                raise GbnfError(f"line {line}: there is no rule named {_shown(name)}")
    names = _lark_names(rules)
    for rule in rules.values():
        for position, (name, _) in rule.names.items():
            rule.parts[position] = names[name]
    return "".join(f"{names[name]}: {' '.join(rule.parts)}\n" for name, rule in rules.items())


def _rules(source: str) -> dict[str, _Rule]:
    rules: dict[str, _Rule] = {}
    rule, last = None, _Token("line", "", 1)
    for token in _tokens(source):
        if token.kind == "rule":
            _end(rule, last.line)
            if token.text in rules:
                raise GbnfError(f"line {token.line}: there are two rules named {_shown(token.text)}")
            rule = rules[token.text] = _Rule()
        elif rule is None:
            raise GbnfError(f"line {token.line}: a rule must come first, as name ::= ..., got {_shown(token.text)}")
        else:
            _add(rule, token)
        last = token
    _end(rule, last.line)
    return rules


def _tokens(source: str) -> Iterator[_Token]:
    position, line = 0, 1
    while position < len(source):
        found = _TOKEN.match(source, position)
        if found is None:
            rest = source[position:].partition("\n")[0]
            unended = {'"': "a text that does not end", "[": "a class of characters that does not end"}
            raise GbnfError(f"line {line}: {unended.get(rest[0], 'it cannot go on as')} {_shown(rest)}")
        kind = str(found.lastgroup)
        if kind not in ("space", "line"):
            yield _Token(kind, found[kind], line)
        line += found[0].count("\n")
        position = found.end()


def _add(rule: _Rule, token: _Token) -> None:
    kind, text, line = token
    if kind == "name":
        rule.names[len(rule.parts)] = text, line
    elif kind == "text":
        text = json.dumps("".join(_characters(text[1:-1], line)), ensure_ascii=False)
    elif kind == "class":
        text = _class(text[1:-1], line)
    elif kind == "repeat":
        if rule.is_open:
            raise GbnfError(f"line {line}: {text} follows nothing to repeat")
        text = re.sub(r"\s", "", text)
    elif text == ".":
        text = "/(?s:.)/"
    elif text == "(":
        rule.depth += 1
    elif text == ")":
        rule.depth -= 1
        if rule.depth < 0:
            raise GbnfError(f"line {line}: a closing bracket without an opening one")
    if text in (")", "|") and rule.is_open and kind == "sign":
        rule.parts.append('""')
    rule.parts.append(text)


def _end(rule: _Rule | None, line: int) -> None:
    if rule is None:
        return
    if rule.depth:
        raise GbnfError(f"line {line}: an unclosed bracket at the end of a rule")
    if rule.is_open:
        rule.parts.append('""')


def _characters(text: str, line: int) -> Iterator[str]:
    position = 0
    for found in _ESCAPE.finditer(text):
        yield from text[position : found.start()]
        position = found.end()
        digits = found[1] or found[2] or found[3]
        if digits is None and found[4] not in _SIMPLE:
            raise GbnfError(f"line {line}: there is no escape {_shown(found[0])}")
        code = ord(_SIMPLE[found[4]]) if digits is None else int(digits, 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise GbnfError(f"line {line}: there is no character {_shown(found[0])}")
        yield chr(code)
    yield from text[position:]


def _class(text: str, line: int) -> str:
    """A class of characters as a regular expression between slashes; escaped characters are literal."""
    is_negated = text.startswith("^")
    parts: list[str] = []
    for part in re.findall(r"\\U.{8}|\\u.{4}|\\x.{2}|\\.|[^\\]", text[is_negated:], re.DOTALL):
        is_range = part == "-" and parts and parts[-1] != "-"
        parts += ["-"] if is_range else [_in_class(character) for character in _characters(part, line)]
    if parts and parts[-1] == "-":
        parts[-1] = r"\-"
    if not parts and not is_negated:
        raise GbnfError(f"line {line}: an empty class of characters")
    if not parts:
        return "/(?s:.)/"
    return f"/[{'^' if is_negated else ''}{''.join(parts)}]/"


def _in_class(character: str) -> str:
    if character in _IN_CLASSES:
        return f"\\{character}"
    return character if character.isprintable() and character != " " else f"\\x{{{ord(character):x}}}"


def _lark_names(rules: dict[str, _Rule]) -> dict[str, str]:
    """Names of terminals for rules that refer to terminals only, names of rules for the others."""
    terminals: set[str] = set()
    while True:
        found = {
            name
            for name, rule in rules.items()
            if name != "root" and all(other in terminals for other, _ in rule.names.values())
        }
        if found == terminals:
            break
        terminals = found
    lark = {name: f"T{number}" if name in terminals else f"r{number}" for number, name in enumerate(rules)}
    return {**lark, "root": "start"}


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "...")
