"""Grammars that were made to take minutes or gigabytes, and what compiling one of them takes of memory.

    python -m tests.grammar.bombs "a word"

prints, as JSON, what came of it and by how many MiB memory grew, of this process and of those that it started. Used by
`test_bombs`.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

from dragoman.errors import InvalidParameter
from dragoman.grammar.compiler import GrammarCompiler
from dragoman.grammar.masker import Vocabulary
from dragoman.types import Grammar

EOS = 256


def regex(source: str) -> Grammar:
    return Grammar("regex", source)


def lark(*lines: str) -> Grammar:
    return Grammar("lark", "\n".join(lines))


def schema(**members: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(members))


def nested(depth: int) -> str:
    return "a" if not depth else f"({nested(depth - 1)}{{0,99}})"


PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)
TOO_COSTLY = {
    "words that may be empty": regex(r"\w*" * 5000),
    "of several kinds": regex(r"\w*\W?.*" * 1500),
    "anything, often": regex(".*" * 8000 + "x"),
    "empty branches": regex(r"(|\w)" * 3000),
    "terminals that multiply": lark("start: T0", r"A: /\w*/", "T0: " + "T1 " * 70, "T1: " + "A " * 70),
    "what periods have in common": lark("start: A", "A: " + " & ".join(f"/(.{{{p}}})*/" for p in PRIMES)),
    "what two long ones have": lark("start: A", "A: /(.{1000})*/ & /(.{1001})*/"),
    "patterns that must all hold": schema(allOf=[{"pattern": f"^(.*[a-z]){{{i}}}.*$"} for i in range(2, 60)]),
    "a tool's pattern and its mark": Grammar(
        "lark", "start: A\nA: /(.{1000})*/ & /(.{1001})*/", frame='start: @output\n# %json {"pattern": "a"}'
    ),
}
OTHERS = {
    "many words": regex("|".join(f"w{i:05d}" for i in range(2300))),
    "letters of all alphabets": regex(r"\p{L}" * 2700),
    "nested repeats": regex(nested(12)),
    "a guess": regex("(a|b)*a(a|b){2000}"),
    "brackets": regex("(" * 8000 + "a" + ")" * 8000),
    "many optional letters": regex("a?" * 4000),
    "deep schemas": Grammar("json_schema", '{"type":"array","items":' * 4000 + "{}" + "}" * 4000),
    "many properties": schema(type="object", properties={f"p{i}": {"type": "integer"} for i in range(5000)}),
    "many kinds": schema(anyOf=[{"type": "object", "properties": {"k": {"const": i}}} for i in range(2500)]),
    "formats": schema(properties={f"p{i}": {"type": "string", "format": "email"} for i in range(3000)}),
    "every combination": schema(allOf=[{"anyOf": [{"minLength": i + j} for j in range(10)]} for i in range(8)]),
    "references that double": schema(
        **{
            "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(25)} | {"d25": {}},
            "$ref": "#/$defs/d0",
        }
    ),
    "many choices": Grammar("choice", json.dumps([f"c{i}" for i in range(20_000)])),
    "an enormous count": schema(type="string", minLength=10**6),
    "an ambiguous rule": lark("start: s", "s: " + " | ".join("s " * count for count in range(2, 60)) + ' | "a"'),
    "terminals that double": lark("start: T0", *(f"T{i}: T{i + 1} T{i + 1}" for i in range(30)), 'T30: "a"'),
}
BOMBS = TOO_COSTLY | OTHERS


def vocabulary() -> Vocabulary:
    """Bytes."""
    return Vocabulary([*(bytes([byte]) for byte in range(256)), b"<eos>"], frozenset({EOS}), EOS)


def main() -> None:
    """Compile one."""
    compiler = GrammarCompiler(vocabulary())
    compiler.compile(regex("a"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = "taken"
    try:
        compiler.compile(BOMBS[sys.argv[1]])
    except InvalidParameter as error:
        answer = error.message
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({"answer": answer, "own": own >> 10, "trial": children.ru_maxrss >> 10}))


if __name__ == "__main__":
    main()
