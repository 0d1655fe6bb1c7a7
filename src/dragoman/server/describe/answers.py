"""The answers that an operation's description lists, by status. Used when APIs are imported or described."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dragoman.errors import ServerError
from dragoman.server.api import JSON_MEDIA_TYPE, HttpCall, Reply, json_reply
from dragoman.server.describe.json_schema import Schema, any_of, schema_of
from dragoman.server.error_kinds import KINDS

KindT = TypeVar("KindT")

_ELSEWHERE = ("unknown_path", "wrong_method", "conflict", "no_memory")

GENERATING = tuple(kind for kind in KINDS if kind not in _ELSEWHERE)
"""Kinds of errors of operations that generate."""

COUNTING = (
    "invalid_payload", "invalid_parameter", "invalid_request", "unsupported", "unauthorized", "not_found", "too_large",
    "unavailable", "overloaded", "timeout", "capacity", "engine_dead", "server_error",
)  # fmt: skip
"""Kinds of errors of operations that tokenise a prompt and generate nothing."""

LOADING = ("unavailable", "engine_dead")
"""Kinds for a model that is not loaded yet, or has stopped."""

LISTING = ("unauthorized",)
"""Kinds of errors of operations that list something."""

FINDING = ("unauthorized", "not_found", *LOADING)
"""Kinds of errors of operations about one model, named in the path."""

READING = ("invalid_payload", "invalid_parameter", "too_large", *FINDING)
"""Kinds of errors of operations about one model, named in the body."""

REFUSING = ("unsupported", "unauthorized")
"""Kinds of errors of operations that refuse each call."""

_OF_KEYS = ("unauthorized", "forbidden", "rate_limited")
"""Where the first is listed, the others are meant as well."""

_HEADERS: Mapping[str, tuple[str, ...]] = {
    "overloaded": ("Retry-After",),
    "unavailable": ("Retry-After",),
    "rate_limited": ("Retry-After",),
    "unauthorized": ("WWW-Authenticate",),
}


Shape = Any
"""The form of a body: a schema, a Struct (or a type made of them), or a tuple of alternatives."""

Content = Mapping[str, Shape]


@dataclass(frozen=True, slots=True)
class Answer:
    """One status of an operation, with its bodies by media type. `headers`: names of header components."""

    description: str
    content: Content = field(default_factory=dict)
    headers: tuple[str, ...] = ()

    def or_else(self, other: Answer) -> Answer:
        """Both answers under one status."""
        merged = dict(self.content)
        for media_type, shape in other.content.items():
            merged[media_type] = (*_choices(merged.get(media_type, ())), *_choices(shape))
        words = dict.fromkeys((*self.description.split("; "), *other.description.split("; ")))
        headers = tuple(dict.fromkeys((*self.headers, *other.headers)))
        return Answer("; ".join(words), merged, headers)


Answers = Mapping[int, Answer]


def merged(*parts: Answers) -> dict[int, Answer]:
    """All answers of several families, joined by status."""
    together: dict[int, Answer] = {}
    for part in parts:
        for status, answer in part.items():
            together[status] = together[status].or_else(answer) if status in together else answer
    return dict(sorted(together.items()))


def json_answer(kind: Any, description: str = "the answer", *headers: str) -> Answer:
    """An answer whose JSON body has that type."""
    return Answer(description, {JSON_MEDIA_TYPE: kind}, headers)


@dataclass(frozen=True, slots=True)
class ErrorFamily:
    """The errors of one API: the status of each kind, and the bodies of a status."""

    statuses: Mapping[str, int]
    content: Callable[[int], Content]

    def answers(self, kinds: Collection[str] = GENERATING) -> dict[int, Answer]:
        by_status: dict[int, Answer] = {}
        for kind in dict.fromkeys((*kinds, *(_OF_KEYS if "unauthorized" in kinds else ()))):
            status = self.statuses[kind]
            answer = Answer(KINDS[kind].meaning, self.content(status), _HEADERS.get(kind, ()))
            by_status[status] = by_status[status].or_else(answer) if status in by_status else answer
        return by_status

    def beside(self, answer: Answer, kinds: Collection[str] = GENERATING) -> dict[int, Answer]:
        """A 200 answer, and the errors of these kinds."""
        return merged({200: answer}, self.answers(kinds))


@dataclass(frozen=True, slots=True)
class JsonErrors(ErrorFamily):
    """Errors whose body is the Struct that `body` makes; implements `ErrorTeller`."""

    body: Callable[[ServerError, HttpCall], Any]
    headers: Callable[[HttpCall], Mapping[str, str]]

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        return json_reply(self.statuses[error.kind], self.body(error, http), self.headers(http))


def json_teller(
    statuses: Mapping[str, int],
    kind: type[KindT],
    body: Callable[[ServerError, HttpCall], KindT],
    headers: Callable[[HttpCall], Mapping[str, str]] = lambda http: {},
) -> JsonErrors:
    return JsonErrors(statuses, lambda status: {JSON_MEDIA_TYPE: kind}, body, headers)


def json_errors(statuses: Mapping[str, int], kind: Any) -> ErrorFamily:
    """Errors whose body is always that Struct."""
    return ErrorFamily(statuses, lambda status: {JSON_MEDIA_TYPE: kind})


def schema_of_shape(shape: Shape) -> Schema:
    """The schema of a body. Schemas of Structs are made here, not at import, since that takes time."""
    schemas: list[Schema] = []
    for choice in _choices(shape):
        schema = choice if isinstance(choice, dict) else schema_of(choice)
        alternatives = schema["anyOf"] if set(schema) == {"anyOf"} else [schema]
        schemas += [one for one in alternatives if one not in schemas]
    return schemas[0] if len(schemas) == 1 else any_of(*schemas)


def types_of(contents: Iterable[Content]) -> list[Any]:
    """The Structs, and types made of them, in these bodies."""
    shapes = [choice for content in contents for shape in content.values() for choice in _choices(shape)]
    return [shape for shape in shapes if not isinstance(shape, dict)]


def _choices(shape: Shape) -> tuple[Any, ...]:
    return shape if isinstance(shape, tuple) else (shape,)
