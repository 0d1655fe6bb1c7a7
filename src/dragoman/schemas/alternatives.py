"""Finds schemas where at most one alternative of `oneOf` can match, so that `anyOf` says the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.schemas.places import References

_MAX_STEPS = 10_000  # comparisons of two schemas, or of values in them; some milliseconds
_MAX_DEPTH = 8
_TYPES: Mapping[type, frozenset[str]] = {
    bool: frozenset({"boolean"}),
    int: frozenset({"integer"}),
    float: frozenset({"integer", "fraction"}),
    str: frozenset({"string"}),
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
    type(None): frozenset({"null"}),
}


def are_disjoint(branches: Sequence[Any], references: References) -> bool:
    """True if no value can match two of them; False also where that takes too long to prove."""
    if len(branches) < 2:
        return True
    resolved = [references.resolved(branch) for branch in branches]
    if len(set(map(id, resolved))) < len(resolved):
        return False
    if _have_own_tags(resolved, references):
        return True
    proof = _Proof(references)
    return all(proof.holds(a, b) for i, a in enumerate(resolved) for b in resolved[:i])


def _have_own_tags(branches: Sequence[Any], references: References) -> bool:
    """True if one property, which all require, has other values in each: quickly found for many branches."""
    if not all(isinstance(branch, Mapping) and branch.get("type") == "object" for branch in branches):
        return False
    for name in branches[0].get("required") or ():
        tags: list[str] = []
        for branch in branches:
            values = _values(references.resolved((branch.get("properties") or {}).get(name)))
            if values is None or name not in (branch.get("required") or ()):
                break
            tags.extend(values)
        else:
            if len(set(tags)) == len(tags):
                return True
    return False


class _Proof:
    def __init__(self, references: References) -> None:
        self._references = references
        self._num_steps = 0

    def holds(self, a: Any, b: Any, depth: int = _MAX_DEPTH) -> bool:
        a, b = self._references.resolved(a), self._references.resolved(b)
        self._num_steps += 1 + _size(a) + _size(b)
        if self._num_steps > _MAX_STEPS or not depth:
            return False
        if a is False or b is False:
            return True
        if not isinstance(a, Mapping) or not isinstance(b, Mapping):
            return False
        if self._types_differ(a, b) or self._values_differ(a, b):
            return True
        return (
            self._holds_for_all_inside(a, b, depth)
            or self._holds_for_all_inside(b, a, depth)
            or (self._objects_differ(a, b, depth))
        )

    def _types_differ(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
        types = _types(a), _types(b)
        return types[0] is not None and types[1] is not None and not types[0] & types[1]

    def _values_differ(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
        values = _values(a), _values(b)
        return values[0] is not None and values[1] is not None and not set(values[0]) & set(values[1])

    def _holds_for_all_inside(self, a: Mapping[str, Any], b: Mapping[str, Any], depth: int) -> bool:
        """True if `a` is one of several, of which no value can match `b` too."""
        for keyword in ("anyOf", "oneOf"):
            branches = a.get(keyword)
            if branches and all(self.holds(branch, b, depth - 1) for branch in branches):
                return True
        return any(self.holds(branch, b, depth - 1) for branch in a.get("allOf") or ())

    def _objects_differ(self, a: Mapping[str, Any], b: Mapping[str, Any], depth: int) -> bool:
        """True for objects of which one must have a property that is something else, or forbidden, in the other."""
        if _types(a) != _TYPES[dict] or _types(b) != _TYPES[dict]:
            return False
        for schema, other in ((a, b), (b, a)):
            properties, others = schema.get("properties") or {}, other.get("properties") or {}
            is_closed = other.get("additionalProperties") is False and not other.get("patternProperties")
            for name in schema.get("required") or ():
                if name not in others:
                    if is_closed:
                        return True
                elif name in properties and self.holds(properties[name], others[name], depth - 1):
                    return True
        return False


def _size(schema: Any) -> int:
    return sum(len(schema.get(name) or ()) for name in ("enum", "required")) if isinstance(schema, Mapping) else 0


def _types(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """The types of values, of which numbers are two; None if the schema does not say."""
    named = schema.get("type")
    if named is not None:
        names = {named} if isinstance(named, str) else set(named)
        return frozenset(names - {"number"} | ({"integer", "fraction"} if "number" in names else set()))
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if listed is None:
        return None
    return frozenset().union(*(_TYPES[type(value)] for value in listed if type(value) in _TYPES))


def _values(schema: Any) -> list[str] | None:
    """The values that a schema lists, as texts; None if it lists none."""
    if not isinstance(schema, Mapping) or not ("const" in schema or "enum" in schema):
        return None
    listed = [schema["const"]] if "const" in schema else schema["enum"]
    return list(dict.fromkeys(map(_text, listed)))


def _text(value: Any) -> str:
    """Equal texts for equal values, such as 1 and 1.0."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)
