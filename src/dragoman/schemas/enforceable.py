"""Rewrites a JSON schema so that the compiler (llguidance) can enforce it; reports the parts that it leaves out, and
why.

The result allows nothing that the schema forbids, except in the reported parts. `schema_problem` checks the structure.
Source: JSON Schema 2020-12, and the drafts 4 to 2019-09 for keywords that it no longer has.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from dragoman.schemas.alternatives import are_disjoint
from dragoman.schemas.patterns import NotRegularError, translated
from dragoman.schemas.places import SCHEMA_LIST_KEYWORDS, SCHEMA_MAP_KEYWORDS, Place, References

FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")
"""Formats that are enforced; others are annotations."""

_UUID = "^[0-9a-fA-F]{{8}}-[0-9a-fA-F]{{4}}-{}[0-9a-fA-F]{{3}}-[89abAB][0-9a-fA-F]{{3}}-[0-9a-fA-F]{{12}}$"
_UUID_VERSION = re.compile(r"uuid([1-8])")
_DRAFTS = re.compile(r"https?://json-schema\.org/(draft-0[467]|draft/20(19-09|20-12))/schema#?")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_NO_EFFECT = (
    "$id",
    "id",
    "$anchor",
    "$dynamicAnchor",
    "$recursiveAnchor",
    "$vocabulary",
)  # but to what `References` does
_APPLICATORS = frozenset({*_REFERENCES, "allOf", "anyOf", "oneOf", "if"})
_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
)
_CONSTRAINTS = frozenset[str]().union(
    ("allOf", "anyOf", "oneOf", "const", "enum", "type"),
    ("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
    ("properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"),
    ("minLength", "maxLength", "pattern", "format"),
    ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
)
_SINGLE_SCHEMAS = ("items", "additionalItems", "additionalProperties")
_HOLDS_SCHEMAS = frozenset({*SCHEMA_MAP_KEYWORDS, *SCHEMA_LIST_KEYWORDS, *_SINGLE_SCHEMAS})
_MAX_REMEMBERED = 16_384  # characters of a schema
_MAX_LENGTH = 2**31  # no answer is as long
_MAX_NAMES = 100  # of properties that are written one by one
_MAX_COPIED = 200  # characters of a schema that is written for each of them
_MAX_PATTERN = 16_384  # characters
_MAX_PATTERNS = 32  # of names, which are compared two by two


SETTINGS = "x-guidance"  # llguidance's own keyword in a schema
_OF_ALL = {
    # One blank after a comma or colon, as models see it most often: where blanks and line breaks are free, small models
    # write them until the limit; and each costs a step.
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,  # to anyOf: where that is not the same, it is told
}


class PassedOver(NamedTuple):
    """A keyword that is not enforced. `place`: as in `.properties.tags.uniqueItems`. `is_fault`: it is never valid."""

    place: str
    reason: str
    is_fault: bool = False


class Enforceable(NamedTuple):
    schema: Any
    passed_over: tuple[PassedOver, ...]


def enforceable(schema: Any) -> Enforceable:
    """The enforceable part of a schema; callers share it, and do not change it."""
    text = json.dumps(schema)
    return _remembered(text) if len(text) <= _MAX_REMEMBERED else _found(schema)


@lru_cache(256)  # clients send the same tools with every request
def _remembered(text: str) -> Enforceable:
    return _found(json.loads(text))


def _found(schema: Any) -> Enforceable:
    rewriting = _Rewriting(schema)
    return Enforceable(rewriting.written(schema, Place(None, "")), tuple(rewriting.passed_over))


def with_settings(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {SETTINGS: _OF_ALL, **schema}


class _Rewriting:
    def __init__(self, root: Any) -> None:
        self.passed_over: list[PassedOver] = []
        self._references = References(root)
        self._current = 0  # the identity of the schema that is being written

    def written(self, schema: Any, place: Place) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        made = {name: value for name, value in schema.items() if name not in _NO_EFFECT}
        self._current = id(schema)
        for keywords, step in _STEPS:
            if not keywords.isdisjoint(made):
                step(self, made, place)
        if made.pop("not", None) in (True, {}):
            return False
        for name in [name for name in made if name in _HOLDS_SCHEMAS]:
            self._write_inner(made, name, place)
        return made

    def pass_over(self, made: dict[str, Any], name: str, place: Place, reason: str, *, is_fault: bool = False) -> None:
        made.pop(name, None)
        self.passed_over.append(PassedOver(str(Place(place, f".{name}")), reason, is_fault))

    def _write_inner(self, made: dict[str, Any], name: str, place: Place) -> None:
        value, step = made[name], f".{name}"
        if name in SCHEMA_MAP_KEYWORDS and isinstance(value, Mapping):
            made[name] = {key: self.written(inner, Place(place, step, key)) for key, inner in value.items()}
        elif (name in SCHEMA_LIST_KEYWORDS or name == "items") and isinstance(value, list):
            made[name] = [self.written(inner, Place(place, step, i)) for i, inner in enumerate(value)]
        else:
            made[name] = self.written(value, Place(place, step))

    # --- one step each: what it mutates is `made` ---------------------------------------------------------------------

    def dialect(self, made: dict[str, Any], place: Place) -> None:
        """Keep only drafts that the compiler knows; it would look for others in the network."""
        if not _DRAFTS.fullmatch(str(made.get("$schema", ""))):
            made.pop("$schema", None)

    def references(self, made: dict[str, Any], place: Place) -> None:
        """Write references to places in the form that the compiler reads."""
        for name in _REFERENCES:
            reference = made.get(name)
            if not isinstance(reference, str):
                continue
            pointer = self._references.pointer(reference)
            if not pointer.startswith("#"):
                self.pass_over(made, name, place, "it leads to another document")
                continue
            target = self._references.target(reference)
            if target is None or self._references.resolved({"$ref": reference}) is None:
                reason = "leads to nothing" if target is None else "leads back to itself"
                self.pass_over(made, name, place, reason, is_fault=True)
                continue
            if not self._references.is_schema(target):
                self.pass_over(made, name, place, "it leads to a part of the document that is no schema")
                continue
            del made[name]
            made["$ref"] = pointer
            self._leave_alone(made, place, reference, target)

    def _leave_alone(self, made: dict[str, Any], place: Place, reference: str, target: Any) -> None:
        """Leave out the neighbours of a reference to a schema that contains this one: the compiler takes none there."""
        others = made.keys() - {"$ref", "$defs", "definitions"}
        if not others or (others & _CONSTRAINTS and not self._references.reaches(reference, self._current)):
            return
        for name in [name for name in made if name in others]:
            if name not in _CONSTRAINTS or (isinstance(target, Mapping) and made[name] == target.get(name)):
                del made[name]
            else:
                self.pass_over(made, name, place, "it stands beside a reference that leads around")

    def joined(self, made: dict[str, Any], place: Place) -> None:
        """Leave out references of `allOf` that lead around, which the compiler cannot join with others."""
        branches = list(made["allOf"])
        if len(branches) < 2 and not _CONSTRAINTS & (made.keys() - {"allOf"}):
            return
        for number, branch in enumerate(branches):
            reference = branch.get("$ref") if isinstance(branch, Mapping) else None
            if isinstance(reference, str) and self._references.reaches(reference, self._current):
                branches[number] = {name: value for name, value in branch.items() if name != "$ref"}
                at = Place(Place(place, ".allOf", number), ".$ref")
                self.passed_over.append(PassedOver(str(at), "it leads around, and is joined with others"))
        made["allOf"] = branches

    def strings(self, made: dict[str, Any], place: Place) -> None:
        form = made.get("format")
        if form is not None and form not in FORMATS:
            del made["format"]
            version = _UUID_VERSION.fullmatch(str(form))
            if version is not None:
                made.setdefault("pattern", _UUID.format(version[1]))
        if isinstance(pattern := made.get("pattern"), str):
            try:
                made["pattern"] = translated(pattern)
            except NotRegularError as error:
                self.pass_over(made, "pattern", place, str(error))
        self._lengths(made, place, "minLength", "maxLength")

    def _lengths(self, made: dict[str, Any], place: Place, least: str, most: str) -> None:
        if made.get(most, 0) >= _MAX_LENGTH:
            del made[most]
        if made.get(least, 0) >= _MAX_LENGTH:
            self.pass_over(made, least, place, f"it is at least {_MAX_LENGTH}")

    def numbers(self, made: dict[str, Any], place: Place) -> None:
        """Leave out bounds beyond 64-bit integers."""
        for name in _bounded(made):
            self.pass_over(made, name, place, "the compiler takes no numbers of that size")

    def arrays(self, made: dict[str, Any], place: Place) -> None:
        contained, least, most = made.pop("contains", None), made.pop("minContains", 1), made.pop("maxContains", None)
        if contained in (True, {}):
            made["minItems"] = max(made.get("minItems", 0), least)
            if most is not None:
                made["maxItems"] = min(made.get("maxItems", most), most)
        elif contained is not None and (least or most is not None):
            self.pass_over(made, "contains", place, "which items match is not counted")
        if made.pop("uniqueItems", False) and made.get("maxItems", 2) > 1:
            self.pass_over(made, "uniqueItems", place, "items are not compared")
        if made.get("unevaluatedItems") not in (None, True, {}) and not _APPLICATORS & made.keys():
            made.setdefault("items", made.pop("unevaluatedItems"))
        self._lengths(made, place, "minItems", "maxItems")

    def objects(self, made: dict[str, Any], place: Place) -> None:
        if made.get("unevaluatedProperties") not in (None, True, {}) and not _APPLICATORS & made.keys():
            made.setdefault("additionalProperties", made.pop("unevaluatedProperties"))
        for name in ("unevaluatedProperties", "unevaluatedItems"):
            if made.pop(name, True) not in (True, {}):
                self.pass_over(made, name, place, "what other keywords of the schema match is not known to it")
        self._patterns_of_names(made, place)
        names = self._references.resolved(made.pop("propertyNames", True))
        if not _is_any_name(names) and not self._name_properties(made, names):
            self.pass_over(made, "propertyNames", place, "names are held to an enum, a pattern or lengths only")
        self._count_properties(made, place)

    def _patterns_of_names(self, made: dict[str, Any], place: Place) -> None:
        sent = made.get("patternProperties") or {}
        if len(sent) > _MAX_PATTERNS:
            self.pass_over(made, "patternProperties", place, f"they are more than {_MAX_PATTERNS}")
            return
        kept: dict[str, Any] = {}
        for pattern, inner in sent.items():
            reason = "a name may match another pattern, too"
            try:
                text = translated(pattern)
                if all(_are_apart(text, other) for other in kept):
                    kept[text] = inner
                    continue
            except NotRegularError as error:
                reason = str(error)
            self.passed_over.append(PassedOver(str(Place(place, ".patternProperties", pattern)), reason))
        if sent:
            made["patternProperties"] = kept

    def _name_properties(self, made: dict[str, Any], names: Any) -> bool:
        """Express `propertyNames` with other keywords; False if they cannot."""
        if not isinstance(names, Mapping) or made.get("patternProperties"):
            return False
        rules = names.keys() - _ANNOTATIONS - {"type"}
        value = made.get("additionalProperties", True)
        listed = [names["const"]] if rules == {"const"} else names.get("enum") if rules == {"enum"} else None
        properties = made.get("properties") or {}
        if listed is not None and len(listed) <= _MAX_NAMES and _is_small(value):
            allowed = [name for name in listed if isinstance(name, str)]
            others = {name: False for name in properties if name not in allowed}
            made["properties"] = {**dict.fromkeys(allowed, value), **properties, **others}
            made["additionalProperties"] = False
            return True
        pattern = _pattern_of(names, rules, listed)
        if pattern is None or properties:
            return False
        made["patternProperties"], made["additionalProperties"] = {pattern: value}, False
        return True

    def _count_properties(self, made: dict[str, Any], place: Place) -> None:
        properties, required = made.get("properties") or {}, set(made.get("required") or ())
        if made.get("minProperties", 0) <= len(required):
            made.pop("minProperties", None)
        is_closed = made.get("additionalProperties") is False and not made.get("patternProperties")
        if is_closed and made.get("maxProperties", 0) >= len(properties):
            made.pop("maxProperties", None)
        is_joined = place.step == ".allOf" or not _APPLICATORS.isdisjoint(made)
        for name in ("minProperties", "maxProperties"):
            if name in made and (made[name] >= _MAX_LENGTH or is_joined or properties.keys() - required):
                self.pass_over(made, name, place, "properties that may be left out are not counted")

    def conditions(self, made: dict[str, Any], place: Place) -> None:
        condition, branches = made.pop("if", None), [made.pop(name, True) for name in ("then", "else")]
        if condition is not None and any(branch not in (True, {}) for branch in branches):
            self.pass_over(made, "if", place, "conditions are not followed")
        for name in ("dependentRequired", "dependentSchemas", "dependencies"):
            if made.pop(name, None):
                self.pass_over(made, name, place, "conditions are not followed")
        if made.get("not", False) is False:
            made.pop("not", None)
        elif made["not"] not in (True, {}):
            self.pass_over(made, "not", place, "what must not be is not followed")
        if "oneOf" in made and not are_disjoint(made["oneOf"], self._references):
            at = Place(place, ".oneOf")
            self.passed_over.append(PassedOver(str(at), "a value may match more than one of them"))


_STEPS: tuple[tuple[frozenset[str], Callable[[_Rewriting, dict[str, Any], Place], None]], ...] = (
    (frozenset({"$schema"}), _Rewriting.dialect),
    (
        frozenset({"if", "then", "else", "not", "oneOf", "dependentRequired", "dependentSchemas", "dependencies"}),
        _Rewriting.conditions,
    ),
    (frozenset({"format", "pattern", "minLength", "maxLength"}), _Rewriting.strings),
    (frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}), _Rewriting.numbers),
    (
        frozenset(
            {"contains", "minContains", "maxContains", "uniqueItems", "unevaluatedItems", "minItems", "maxItems"}
        ),
        _Rewriting.arrays,
    ),
    (
        frozenset({"propertyNames", "patternProperties", "minProperties", "maxProperties"})
        | {"unevaluatedProperties", "unevaluatedItems"},
        _Rewriting.objects,
    ),
    (frozenset(_REFERENCES), _Rewriting.references),
    (frozenset({"allOf"}), _Rewriting.joined),
)


def _is_any_name(names: Any) -> bool:
    """True if a schema of names holds for all of them."""
    if not isinstance(names, Mapping):
        return names is True
    rest = {key: value for key, value in names.items() if key not in _ANNOTATIONS}
    unknown_format = rest.get("format") not in FORMATS
    return not rest.keys() - {"type", "format"} and unknown_format and "string" in rest.get("type", "string")


def _pattern_of(names: Mapping[str, Any], rules: set[str], listed: Any) -> str | None:
    """One regular expression for names, None if it takes more."""
    if isinstance(listed, list):
        text = f"^(?:{'|'.join(re.escape(name) for name in listed if isinstance(name, str))})$"
        return text if len(text) <= _MAX_PATTERN else None
    if rules == {"pattern"}:
        try:
            return translated(names["pattern"])
        except NotRegularError:
            return None
    if rules and rules <= {"minLength", "maxLength"} and max(names[name] for name in rules) < _MAX_LENGTH:
        return f"^(?s:.{{{names.get('minLength', 0)},{names.get('maxLength', '')}}})$"
    return None


def _is_small(schema: Any) -> bool:
    values = schema.values() if isinstance(schema, Mapping) else ()
    return not any(isinstance(value, list | dict) for value in values) and len(str(schema)) <= _MAX_COPIED


def _are_apart(a: str, b: str) -> bool:
    """True if no name can match both patterns, as their first characters show."""
    heads = [_HEAD.match(pattern) for pattern in (a, b)]
    if None in heads or "|" in a + b:
        return False
    first, second = (head[1] for head in heads if head is not None)
    return not first.startswith(second) and not second.startswith(first)


_HEAD = re.compile(r"\^([\w -]*)(?![*?{\w -])")


# --- bounds on numbers: the compiler follows those of 64-bit integers and floats --------------------------------------

_LOWERS, _UPPERS = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_LOWEST = -9_200_000_000_000_000_000  # of integers
_HIGHEST = 2**63 - 1
_OPEN = 10**17  # an integer beyond it needs a bound on its other side, too
_LARGEST = 10**18  # of other numbers
_VACUOUS = sys.float_info.max


def _bounded(made: dict[str, Any]) -> Iterator[str]:
    """Change bounds to those that the compiler takes; returns the names of the rest. Mutates: `made`."""
    _modernise(made)
    if _is_integer(made):
        yield from _integers(made)
        return
    for name in (*_LOWERS, *_UPPERS):
        if abs(made.get(name, 0)) >= _VACUOUS:
            del made[name]
        elif abs(made.get(name, 0)) >= _LARGEST:
            yield name


def _modernise(made: dict[str, Any]) -> None:
    """Until draft 4 a bound was exclusive if a truth value said so."""
    for inclusive, exclusive in zip(("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum"), strict=True):
        if isinstance(is_exclusive := made.get(exclusive), bool):
            del made[exclusive]
            if is_exclusive and inclusive in made:
                made[exclusive] = made.pop(inclusive)


def _is_integer(made: dict[str, Any]) -> bool:
    kinds = made.get("type")
    return kinds == "integer" or (isinstance(kinds, list) and "integer" in kinds and "number" not in kinds)


def _integers(made: dict[str, Any]) -> Iterator[str]:
    for names, other in ((_LOWERS, _UPPERS), (_UPPERS, _LOWERS)):
        sign = 1 if names is _LOWERS else -1
        for name in names:
            value = made.get(name, 0) * sign
            if value >= -_LOWEST:
                yield name
            elif value < _LOWEST and names is _LOWERS:  # the compiler itself lowers upper bounds
                made[name] = _LOWEST
            elif value >= _OPEN and not any(key in made for key in other):
                made[other[0]] = _HIGHEST if names is _LOWERS else _LOWEST
