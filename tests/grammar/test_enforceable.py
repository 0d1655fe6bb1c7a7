"""What becomes of a schema's keywords: said in other words, passed over and named, or dropped where they mean nothing."""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from dragoman.grammar.compiler import GrammarCompiler
from dragoman.grammar.masker import Vocabulary
from dragoman.schemas.enforceable import enforceable
from dragoman.schemas.patterns import NotRegularError, translated
from dragoman.types import Grammar, TokenMasker

pytest.importorskip("llguidance")

EOS = 256
COMPILER = GrammarCompiler(Vocabulary([*(bytes([byte]) for byte in range(256)), b"<eos>"], frozenset({EOS}), EOS))
NODE = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
CAT = {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]}
CLOSED = {"type": "object", "additionalProperties": False}
TWO: dict[str, Any] = {"properties": {"a": {}, "b": {}}}
COLORS = {"enum": ["red", "blue"]}


class Row(NamedTuple):
    """A schema, the places that are passed over, values that the grammar takes, and values that it refuses."""

    schema: Any
    passed_over: list[str]
    good: list[Any]
    bad: list[Any]


ROWS: dict[str, Row] = {
    # --- that mean nothing
    "names are texts": Row({"type": "object", "propertyNames": {"type": "string"}}, [], [{"a": 1}], [1]),
    "items may be the same": Row({"type": "array", "uniqueItems": False}, [], [[1, 1]], [1]),
    "one item is unique": Row({"type": "array", "uniqueItems": True, "maxItems": 1}, [], [[1]], [[1, 2]]),
    "nothing is forbidden": Row({"type": "integer", "not": False}, [], [1], ["a"]),
    "no consequence": Row({"type": "integer", "if": {"const": 1}, "then": {}}, [], [1], ["a"]),
    "no condition": Row({"type": "integer", "then": False, "minContains": 2}, [], [1], ["a"]),
    "all is evaluated": Row({"type": "object", "unevaluatedProperties": True, "dependentRequired": {}}, [], [{}], [1]),
    "no items need match": Row({"type": "array", "contains": {"const": 1}, "minContains": 0}, [], [[2]], [1]),
    "unknown format": Row({"type": "string", "format": "password"}, [], ["a"], [1]),
    "unknown draft": Row({"$schema": "https://example.com/x", "type": "integer"}, [], [1], ["a"]),
    "so many are required": Row({"type": "object", "minProperties": 1, **TWO, "required": ["a"]}, [], [{"a": 1}], [{}]),
    "there are no more": Row({**CLOSED, "maxProperties": 2, **TWO}, [], [{"a": 1, "b": 2}], [{"c": 1}]),
    "beyond every answer": Row({"type": "string", "maxLength": 2**40}, [], ["a"], [1]),
    "every double": Row({"type": "number", "maximum": 1.7976931348623157e308}, [], [1e5], ["a"]),
    # --- that are said in other words
    "names of an enum": Row(
        {
            "type": "object",
            "propertyNames": {"$ref": "#/$defs/c"},
            "additionalProperties": {"type": "integer"},
            "$defs": {"c": COLORS},
        },
        [],
        [{}, {"red": 1}, {"red": 1, "blue": 2}],
        [{"green": 1}, {"red": "a"}],
    ),
    "names of a constant": Row({"type": "object", "propertyNames": {"const": "a"}}, [], [{"a": 1}], [{"b": 1}]),
    "names of a long enum": Row(
        {"type": "object", "propertyNames": {"enum": [f"a.{i}" for i in range(200)]}},
        [],
        [{"a.199": 1}],
        [{"a.200": 1}, {"a_1": 1}],
    ),
    "names of an enum, values with more": Row(
        {
            "type": "object",
            "propertyNames": COLORS,
            "additionalProperties": {"type": "object", "properties": {"a": {"type": "integer"}}},
            "required": ["blue"],
        },
        [],
        [{"blue": {"a": 1}}, {"blue": {}, "red": {}}],
        [{"red": {}}, {"green": {}, "blue": {}}, {"blue": {"a": "b"}}],
    ),
    "names of a pattern": Row({"type": "object", "propertyNames": {"pattern": "^a"}}, [], [{"ab": 1}], [{"b": 1}]),
    "names of a length": Row(
        {"type": "object", "propertyNames": {"minLength": 2, "maxLength": 3}}, [], [{"ab": 1}], [{"a": 1}]
    ),
    "an item at least": Row({"type": "array", "contains": {}}, [], [[1]], [[]]),
    "never": Row({"type": "object", "properties": {"a": {"not": {}}}}, [], [{}, {"b": 1}], [{"a": 1}]),
    "no more properties": Row({"type": "object", **TWO, "unevaluatedProperties": False}, [], [{"a": 1}], [{"c": 1}]),
    "no more items": Row({"type": "array", "prefixItems": [{}], "unevaluatedItems": False}, [], [[1]], [[1, 2]]),
    "int64": Row({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, [], [0, -5, 2**63 - 1], [2**63, 1.5]),
    "a large id": Row({"type": "integer", "minimum": 10**18}, [], [10**18], [5]),
    "far below": Row({"type": "integer", "maximum": -(10**18)}, [], [-(10**18)], [5]),
    "exclusive as in draft 4": Row(
        {"type": "integer", "minimum": 1, "exclusiveMinimum": True, "exclusiveMaximum": False}, [], [2], [1]
    ),
    "a version of UUIDs": Row(
        {"type": "string", "format": "uuid4"},
        [],
        ["123e4567-e89b-42d3-a456-426614174000"],
        ["123e4567-e89b-12d3-a456-426614174000"],
    ),
    "an anchor": Row(
        {"items": {"$ref": "#n"}, "type": "array", "$defs": {"x": {"$anchor": "n", "type": "integer"}}},
        [],
        [[1]],
        [["a"]],
    ),
    "an id": Row(
        {"items": {"$ref": "n"}, "type": "array", "$defs": {"a/b": {"$id": "n", "type": "integer"}}}, [], [[1]], [["a"]]
    ),
    "a dynamic anchor": Row(
        {"type": "array", "items": {"$dynamicRef": "#n"}, "$defs": {"x": {"$dynamicAnchor": "n", "type": "null"}}},
        [],
        [[None]],
        [[1]],
    ),
    "the root": Row(NODE, [], [{"next": {"next": {}}}], [{"next": 1}]),
    "a root with a title": Row(
        {**NODE, "properties": {"next": {"$ref": "#", "title": "t", "default": None}}},
        [],
        [{"next": {}}],
        [{"next": 1}],
    ),
    "a name with brackets": Row(
        {"$ref": "#/$defs/Box[int]", "$defs": {"Box[int]": {"type": "integer"}}}, [], [1], ["a"]
    ),
    "integer or object": Row(
        {"oneOf": [{"type": "integer"}, {"$ref": "#/$defs/c"}], "$defs": {"c": CAT}},
        [],
        [1, {"kind": "cat"}],
        ["a", {"kind": "x"}],
    ),
    "a discriminated union": Row(
        {
            "oneOf": [{"$ref": "#/$defs/c"}, {"$ref": "#/$defs/d"}],
            "discriminator": {"propertyName": "kind"},
            "$defs": {"c": CAT, "d": DOG},
        },
        [],
        [{"kind": "dog"}],
        [{"kind": "cow"}],
    ),
    "one closed, one with more": Row(
        {
            "oneOf": [
                {**CLOSED, "properties": {"a": {}}, "required": ["a"]},
                {**CLOSED, "properties": {"b": {}}, "required": ["b"]},
            ]
        },
        [],
        [{"b": 1}],
        [{}],
    ),
    "several within one": Row(
        {"oneOf": [{"anyOf": [{"type": "null"}, {"const": "a"}]}, {"enum": [1, "b"]}]}, [], [None, "a", "b"], ["c"]
    ),
    # --- that are passed over
    "unique": Row({"type": "array", "uniqueItems": True}, [".uniqueItems"], [[1]], [1]),
    "forbidden": Row({"type": "string", "not": {"const": "a"}}, [".not"], ["b"], [1]),
    "a condition": Row({"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}}, [".if"], [{}], [1]),
    "dependent": Row({"type": "object", "dependentRequired": {"a": ["b"]}}, [".dependentRequired"], [{}], [1]),
    "contained": Row({"type": "array", "contains": {"const": 1}}, [".contains"], [[1]], [1]),
    "not evaluated": Row(
        {"allOf": [{"type": "object", **TWO}], "unevaluatedProperties": False},
        [".unevaluatedProperties"],
        [{"a": 1}],
        [1],
    ),
    "counted": Row({"type": "object", "minProperties": 1, **TWO}, [".minProperties"], [{"a": 1}], [1]),
    "counted elsewhere": Row(
        {"allOf": [{"type": "object", "minProperties": 1}, {"type": "object", **TWO}]},
        [".allOf[0].minProperties"],
        [{"a": 1}],
        [1],
    ),
    "names of a format": Row(
        {"type": "object", "propertyNames": {"format": "date"}}, [".propertyNames"], [{"2026-01-01": 1}], [1]
    ),
    "look-ahead": Row({"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}, [".pattern"], ["1.5"], [1]),
    "names with look-ahead": Row(
        {"type": "object", "patternProperties": {"^(?!x)": {}}}, [".patternProperties.^(?!x)"], [{"a": 1}], [1]
    ),
    "patterns that overlap": Row(
        {"type": "object", "patternProperties": {"^x": {"type": "integer"}, "^xy": {}, "^z": {}}},
        [".patternProperties.^xy"],
        [{"x": 1}, {"z": "a"}],
        [{"x": "a"}],
    ),
    "too large": Row({"type": "number", "minimum": 1e20}, [".minimum"], [2e20], ["a"]),
    "another document": Row({"type": "array", "items": {"$ref": "https://example.com/x"}}, [".items.$ref"], [[1]], [1]),
    "no schema": Row(
        {"items": {"$ref": "#/components/x"}, "type": "array", "components": {"x": {"type": "null"}}},
        [".items.$ref"],
        [[None]],
        [1],
    ),
    "beside a reference that leads around": Row(
        {
            "type": "object",
            "properties": {"next": {"$ref": "#", "type": "object", "nullable": True, "required": ["a"]}},
        },
        [".properties.next.required"],
        [{"next": {"next": {"a": 1}, "a": 1}}],
        [{"next": 1}],
    ),
    "joined with a reference that leads around": Row(
        {
            "$ref": "#/$defs/n",
            "$defs": {
                "n": {
                    "type": "object",
                    "properties": {"next": {"allOf": [{"$ref": "#/$defs/n"}, {"type": "object", "required": ["a"]}]}},
                }
            },
        },
        [".$defs.n.properties.next.allOf[0].$ref"],
        [{"next": {"a": 1}}],
        [{"next": {}}],
    ),
    "more than one of": Row({"oneOf": [{"type": "integer"}, {"type": "number"}]}, [".oneOf"], [1.5], ["a"]),
    "one of several objects": Row({"oneOf": [{"type": "object", **TWO}, CAT]}, [".oneOf"], [{"a": 1}], [1]),
    "deep inside": Row(
        {
            "anyOf": [{"type": "array", "items": {"$ref": "#/$defs/x"}}],
            "$defs": {"x": {"type": "array", "uniqueItems": True}},
        },
        [".$defs.x.uniqueItems"],
        [[[1]]],
        [[1]],
    ),
    "a property of that name": Row(
        {"type": "object", "properties": {"not": {"type": "integer"}, "uniqueItems": {"type": "string"}}},
        [],
        [{"not": 1}],
        [{"not": "a"}],
    ),
}


def is_taken(masker: TokenMasker, value: Any) -> bool:
    text = json.dumps(value, ensure_ascii=False).encode()
    return all(masker.advance(byte) for byte in text) and masker.advance(EOS)


@pytest.mark.parametrize("name", ROWS)
def test_a_keyword_is_followed_or_named(name: str) -> None:
    schema, passed_over, good, bad = ROWS[name]
    before = json.dumps(schema)
    assert [one.place for one in enforceable(schema).passed_over] == passed_over
    assert json.dumps(schema) == before, "others still need it as it was"
    masker = COMPILER.compile(Grammar("json_schema", before))
    assert [value for value in good if not is_taken(masker.fork(), value)] == []
    assert [value for value in bad if is_taken(masker.fork(), value)] == []


def test_the_tables_own_values_are_right() -> None:
    """By the reference implementation, where it knows the draft and the document."""
    unknown = {"unknown draft", "another document", "exclusive as in draft 4", "an id", "a version of UUIDs"}
    for name in ROWS.keys() - unknown:
        schema, _, good, bad = ROWS[name]
        validator = Draft202012Validator(schema)
        assert [value for value in good if not validator.is_valid(value)] == [], name
        assert [value for value in bad if validator.is_valid(value)] == [], name


MANY = [str(number) for number in range(2000)]
HOSTILE: dict[str, Any] = {
    "a chain of references": {
        "$ref": "#/$defs/0",
        "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(2000)},
    },
    "many alternatives": {
        "oneOf": [{"type": "object", "properties": {"a": {"enum": [*range(50)]}}} for _ in range(500)]
    },
    "many values": {"oneOf": [{"enum": [f"{i}-{number}" for number in MANY]} for i in range(10)]},
    "alternatives that are one": {
        "oneOf": [{"$ref": "#/$defs/a"}] * 2000,
        "$defs": {"a": {"type": "object", "properties": {key: {"const": 1} for key in MANY}, "required": MANY}},
    },
    "many patterns": {"patternProperties": {f"^{number}": {} for number in MANY}},
    "names within names": {"propertyNames": {"enum": MANY[:90]}, "additionalProperties": {"properties": {}}},
    "brackets": {"pattern": "(a$|" * 5000},
}
for _ in range(20):
    HOSTILE["names within names"] = {
        **HOSTILE["names within names"],
        "additionalProperties": HOSTILE["names within names"],
    }


def test_hostile_schemas_take_bounded_time() -> None:
    """They are read on the event loop."""
    for name, schema in HOSTILE.items():
        size = len(json.dumps(schema))
        begin = time.process_time()
        found = enforceable(schema)
        assert time.process_time() - begin < 2.0, name
        assert len(json.dumps(found.schema)) < 20 * size + 1000, name


PATTERNS = {
    r"(^a$|^b$)": (["a", "b"], ["ab", "c"]),
    r"a(b$|c$)": (["xab"], ["abx"]),
    r"a|^b": (["xa", "b"], ["xb"]),
    r"[[]": (["["], ["a"]),
    r"^[^[\]]+$": (["a"], ["["]),
    r"^[a&&b]$": (["&", "a"], ["c"]),
    r"^[+--]$": ([",", "-"], ["."]),
    r"^\cA\0[\b]$": (["\x01\x00\x08"], ["a"]),
    r"^a{,3}$": (["a{,3}"], ["aa"]),
    r"^a{x}$": (["a{x}"], ["ax"]),
    r"^\ud83d\ude00$": (["\U0001f600"], ["a"]),
    r"^\u{1f600}\x41$": (["\U0001f600A"], ["a"]),
    r"\Aa\Z": (["a"], ["ab"]),
    r"(?i)^abc$": (["ABC"], ["ab"]),
    r"^(?P<n>\d+)/(?<m>b)$": (["12/b"], ["/"]),
    r"^\p{Lu}[^]x]$": (["Éa"], ["Éx", "a]"]),
}
NOT_REGULAR = {
    **dict.fromkeys(("a(?=b)", "(?<!a)b", "^(?!x)"), "look-ahead and look-behind"),
    **dict.fromkeys((r"(a)\1", r"(?P<n>a)(?P=n)", r"(?<n>a)\k<n>"), "a back reference"),
    **dict.fromkeys((r"\bfoo\b", r"\Ba"), "a word boundary"),
    **dict.fromkeys(("a^b", "a$b", "(a$)+", "(a$)?", "a(b$|c)d", "(?:a|b)^", "(a|^)b$c"), "an anchor inside a pattern"),
    "(?>a)": "a group that begins with (?>",
}


def test_patterns_are_followed_as_their_writers_mean_them() -> None:
    for pattern, (good, bad) in PATTERNS.items():
        masker = COMPILER.compile(Grammar("json_schema", json.dumps({"type": "string", "pattern": pattern})))
        assert [text for text in good if not is_taken(masker.fork(), text)] == [], pattern
        assert [text for text in bad if is_taken(masker.fork(), text)] == [], pattern


def test_patterns_that_no_grammar_can_follow_are_reported() -> None:
    for pattern, words in NOT_REGULAR.items():
        with pytest.raises(NotRegularError, match="cannot be followed") as caught:
            translated(pattern)
        assert str(caught.value).startswith(words)
