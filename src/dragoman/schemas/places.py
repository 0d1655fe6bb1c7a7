"""Walks the parts of a JSON schema, with their places, and follows its references. Judges no keywords."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

SCHEMA_KEYWORDS = (
    "items",
    "additionalItems",
    "additionalProperties",
    "not",
    "contains",
    "if",
    "then",
    "else",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)
SCHEMA_LIST_KEYWORDS = ("anyOf", "allOf", "oneOf", "prefixItems")
SCHEMA_MAP_KEYWORDS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_HOLDS_SCHEMAS = frozenset({*SCHEMA_KEYWORDS, *SCHEMA_LIST_KEYWORDS, *SCHEMA_MAP_KEYWORDS})
_ANCHORS = ("$anchor", "$dynamicAnchor")
_MAX_CHAIN = 16  # references that lead to references
_MAX_VISITS = 20_000  # of schemas, on the ways of all references
_MAX_TRIES = 100  # of a tenth of a millisecond
_MAX_NAME = 60  # characters of a property that an error repeats


class Place(NamedTuple):
    """The place of a schema. It becomes text only in a message: there may be many, and their names may be long."""

    above: Place | None
    step: str
    key: object = None

    def __str__(self) -> str:
        key = (
            f"[{self.key}]" if isinstance(self.key, int) else "" if self.key is None else f".{self.key!s:.{_MAX_NAME}}"
        )
        return f"{self.above or ''}{self.step}{key}"

    @property
    def pointer(self) -> str:
        above = "#" if self.above is None else self.above.pointer
        steps = [self.step[1:], *([] if self.key is None else [str(self.key)])] if self.step else []
        return "/".join([above, *(quote(step.replace("~", "~0").replace("/", "~1")) for step in steps)])


def inner_schemas(schema: Mapping[str, Any], place: Place) -> Iterator[tuple[Place, Any]]:
    """The schemas that a schema's keywords hold, with their places. The structure must be sound (`schema_problem`)."""
    for name, value in schema.items():
        if name not in _HOLDS_SCHEMAS:
            continue
        step = f".{name}"
        if name in SCHEMA_MAP_KEYWORDS:
            yield from ((Place(place, step, key), child) for key, child in value.items())
        elif name in SCHEMA_LIST_KEYWORDS or (name == "items" and isinstance(value, list)):  # as drafts before 2020-12
            yield from ((Place(place, step, key), child) for key, child in enumerate(value))
        else:
            yield Place(place, step), value


def innermost_fault(schema: Mapping[str, Any], reason_of: Callable[[Any], str]) -> tuple[Place, str] | None:
    """The innermost part that is wrong by itself, and the reason; None for the whole. `reason_of`: a schema's fault."""
    found, num_tries = None, 0
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    inside = list(inner_schemas(schema, Place(None, "$")))
    while inside:
        place, part = inside.pop(0)
        if not isinstance(part, Mapping):
            continue
        num_tries += 1
        if num_tries > _MAX_TRIES:
            break
        if reason := reason_of({**definitions, **part}):
            found, inside = (place, reason), list(inner_schemas(part, place))
    return found


class References:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._named: dict[str, Place] = {}  # anchors and ids
        self._targets: dict[str, Any] = {}
        self._reachable: dict[str, set[int]] = {}
        self._num_visits = 0
        self._schemas: set[int] = set()  # the identities of all schemas in it, which live as long as it does
        waiting = [(Place(None, ""), root)]
        while waiting:
            place, schema = waiting.pop()
            if isinstance(schema, Mapping):
                self._schemas.add(id(schema))
                self._add_names(schema, place)
                waiting.extend(inner_schemas(schema, place))

    def _add_names(self, schema: Mapping[str, Any], place: Place) -> None:
        for keyword in _ANCHORS:
            if isinstance(name := schema.get(keyword), str):
                self._named.setdefault(f"#{name}", place)
        if isinstance(name := schema.get("$id"), str):
            self._named.setdefault(name, place)

    def pointer(self, reference: str) -> str:
        place = self._named.get(reference)
        return quote(reference, safe="#/~%$-._!&'()*+,;=:@?") if place is None else place.pointer

    def target(self, reference: str) -> Any:
        """The value that a reference leads to, None = nothing. One reference may lead to another."""
        if reference not in self._targets:
            self._targets[reference] = referred(self.pointer(reference), self._root)
        return self._targets[reference]

    def is_schema(self, part: Any) -> bool:
        return isinstance(part, bool) or id(part) in self._schemas

    def resolved(self, schema: Any) -> Any:
        """The schema itself, or the one that its reference leads to; None if it leads to none, or around."""
        for _ in range(_MAX_CHAIN):
            if not isinstance(schema, Mapping) or not isinstance(reference := schema.get("$ref"), str):
                return schema
            schema = self.target(reference)
        return None

    def reaches(self, reference: str, schema_id: int) -> bool:
        """True if the schema of this identity is part of what a reference leads to; also where that takes long to tell."""
        if reference not in self._reachable:
            self._reachable[reference] = self._all_below(self.target(reference))
        return self._num_visits > _MAX_VISITS or schema_id in self._reachable[reference]

    def _all_below(self, schema: Any) -> set[int]:
        """The identities of all schemas in one, and in those that it refers to."""
        found: set[int] = set()
        waiting = [schema]
        while waiting and self._num_visits <= _MAX_VISITS:
            part = waiting.pop()
            if not isinstance(part, Mapping) or id(part) in found:
                continue
            self._num_visits += 1
            found.add(id(part))
            waiting.extend(inner for _, inner in inner_schemas(part, Place(None, "")))
            if isinstance(reference := part.get("$ref"), str):
                waiting.append(self.target(reference))
        return found


def referred(reference: str, root: Any) -> Any:
    """The value that a reference within a document leads to; None if it leads to nothing, or out of it."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    found = root
    for step in unquote(reference[1:]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(name)
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found
