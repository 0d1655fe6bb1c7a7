"""Arguments as bare text between tags: which JSON value a text is, and which texts a schema allows. Any thread."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from dragoman.schemas.enforceable import SETTINGS, enforceable, with_settings
from dragoman.schemas.places import referred
from dragoman.server.generation.output_parsers.base import Marker
from dragoman.server.generation.output_parsers.call_reader import json_value

Schema = Mapping[str, Any]

_KINDS: Mapping[type, frozenset[str]] = {
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    str: frozenset({"string"}),
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
    type(None): frozenset({"null"}),
}
STRING, OBJECT, ARRAY = frozenset({"string"}), frozenset({"object"}), frozenset({"array"})
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_ENFORCED = frozenset(
    ("type", "enum", "const", "minLength", "maxLength", "pattern", "title", "description", "default", "examples")
)
_PLAIN = frozenset(("type", "properties", "required", "additionalProperties", "items", "title", "description"))
_PADDED = re.compile(r"(?:\+|(-))?0*(\d+(?:\.\d+)?)")  # a number as JSON does not write it: 007, +7
_MAX_REFERENCES = 16  # in a chain; a schema may refer to itself


def kinds(schema: Any, root: Schema, depth: int = _MAX_REFERENCES) -> frozenset[str] | None:
    """The JSON types that a schema allows, None if it does not say. `root`: where its references lead."""
    if not isinstance(schema, Mapping):
        return None
    if isinstance(reference := schema.get("$ref"), str):
        return kinds(referred(reference, root), root, depth - 1) if depth else None
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(name for name in named if isinstance(name, str))
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(listed, list):
        return frozenset().union(*(_KINDS[type(value)] for value in listed if type(value) in _KINDS))
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(branches := schema.get(key), list) and depth:
            found = [kinds(branch, root, depth - 1) for branch in branches]
            return None if None in found else frozenset().union(*(kind for kind in found if kind))
    return None


def typed(text: str, schema: Any, root: Schema) -> str:
    """The JSON text of the value that a bare text stands for: JSON if the schema allows that value, else a string."""
    allowed = kinds(schema, root)
    if allowed == STRING:
        return dumped(text)
    written = text.strip()
    number = _PADDED.fullmatch(written) if allowed is not None and "string" not in allowed else None
    for candidate in (written, _PYTHON_WORDS.get(written, ""), (number[1] or "") + number[2] if number else ""):
        value = json_value(candidate)
        is_null = value is None and candidate == "null"
        if (value is not None or is_null) and (allowed is None or allowed & _KINDS[type(value)]):
            return candidate
    return dumped(text)


def argument_schemas(root: Schema) -> Mapping[str, Any]:
    """`root` is the schema of all arguments. Arguments that can never come are left out."""
    found = resolved(root, root)
    properties = found.get("properties") if isinstance(found, Mapping) else None
    known = properties if isinstance(properties, Mapping) else {}
    return {name: schema for name, schema in known.items() if schema is not False}


def unenforced(schema: Any, root: Schema) -> str:
    """The keywords of a schema that `text_rule` does not enforce, "" if there are none."""
    allowed = kinds(schema, root)
    found = resolved(schema, root)
    if not isinstance(found, Mapping) or (allowed is not None and "string" not in allowed):
        return ""
    return ", ".join(sorted(key for key in found if key not in _ENFORCED))


def is_plain(schema: Schema) -> bool:
    """True for a schema of an object or array of which a grammar can write each part in the model's own notation."""
    return not schema.keys() - _PLAIN


class TextRule(NamedTuple):
    """Lark: an expression for a value with the mark at its end, and the rules it needs."""

    lark: str
    rules: str


def text_rule(name: str, schema: Any, root: Schema, end: End) -> TextRule:
    """The rule of a value up to the end mark, which no value holds. Rule names begin with `name`."""
    allowed = kinds(schema, root)
    schema = resolved(schema, root)
    if isinstance(schema, Mapping) and allowed is not None and "string" not in allowed:
        return TextRule(f"{json_rule(schema, root)} {end.lark}", "")
    known = schema if isinstance(schema, Mapping) else {}
    strings = _listed_strings(known)
    if strings and all(end.mark.text not in text and typed(text, known, root) == dumped(text) for text in strings):
        return TextRule(f"({' | '.join(map(dumped, strings))}) {end.lark}", "")
    patterns = _patterns(known)
    if end.mark.token_id is not None:
        terminal = " & ".join(f"/{pattern}/" for pattern in patterns)
        return TextRule(f"{name.upper()} {end.lark}", f"{name.upper()}: {terminal}\n")
    closed = [f"/{pattern}{end.regex}/" for pattern in patterns]
    terminal = " & ".join([*closed, f"~/(?s:.*){end.regex}(?s:.+)/"])
    return TextRule(name, f"{name}[lazy]: {name.upper()}\n{name.upper()}: {terminal}\n")


def json_rule(schema: Any, root: Schema, **settings: Any) -> str:
    """References to other parts of `root` are not enforced. `settings`: of llguidance, in place of the usual ones."""
    known = schema if isinstance(schema, Mapping) else {}
    inner = {**known, **{key: root[key] for key in ("$defs", "definitions") if key in root}}
    written = with_settings(enforceable(inner).schema)
    return f"%json {json.dumps(written | {SETTINGS: written[SETTINGS] | settings})}"


class End(NamedTuple):
    """The end of a value: a mark, and perhaps a line break before it and more text `after` it."""

    mark: Marker
    line_break: str = ""
    after: str = ""

    @property
    def lark(self) -> str:
        parts = (self.line_break and dumped(self.line_break), self.mark.lark, self.after and dumped(self.after))
        return " ".join(filter(None, parts))

    @property
    def regex(self) -> str:
        """The end in a regular expression between slashes."""
        return self.line_break.replace("\n", r"\n") + self.mark.regex + Marker(self.after).regex


def _listed_strings(schema: Schema) -> list[str]:
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(listed, list) or not all(isinstance(value, str) for value in listed):
        return []
    return list(listed)


def _patterns(schema: Schema) -> list[str]:
    """Regular expressions, between slashes, that all hold for the allowed strings."""
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    patterns = [f"(?s:.{{{least},{most}}})" if least or most != "" else "(?s:.*)"]
    if isinstance(pattern := schema.get("pattern"), str):
        is_anchored = pattern.endswith("$") and not pattern.endswith(r"\$")
        core = _slashed(pattern.removeprefix("^")[: -1 if is_anchored else None])
        head, tail = "" if pattern.startswith("^") else "(?s:.*)", "" if is_anchored else "(?s:.*)"
        patterns.append(f"{head}(?:{core}){tail}")
    return patterns


def _slashed(pattern: str) -> str:
    return re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern)


def dumped(text: str) -> str:
    """The text as a string of JSON, which is also a literal of Lark."""
    return json.dumps(text, ensure_ascii=False)


def resolved(schema: Any, root: Schema) -> Any:
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping) or not isinstance(reference := schema.get("$ref"), str):
            break
        schema = referred(reference, root)
    return schema
