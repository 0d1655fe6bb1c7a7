"""The answers of an operation as its description lists them: by status, with what each kind of error means in words.

Does: put answers of one status together. Does not: know any API's statuses or bodies.
Used by the APIs when they are imported, and when the OpenAPI document is built.
"""

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
"""Kinds that operations which generate answer with; the others tell that there is none, or concern loading models."""

COUNTING = (
    "invalid_payload", "invalid_parameter", "invalid_request", "unsupported", "unauthorized", "not_found", "too_large",
    "unavailable", "overloaded", "timeout", "capacity", "engine_dead", "server_error",
)  # fmt: skip
"""Kinds that operations answer with which tokenise a prompt, or count its tokens, and generate nothing."""

LOADING = ("unavailable", "engine_dead")
"""Kinds that tell of a model which is not there yet, or not any more."""

LISTING = ("unauthorized",)
"""Kinds that operations answer with which list something, whatever the call says."""

FINDING = ("unauthorized", "not_found", *LOADING)
"""Kinds that operations answer with which tell about one model, named in the path."""

READING = ("invalid_payload", "invalid_parameter", "too_large", *FINDING)
"""Kinds that operations answer with which tell about one model, named in the body."""

REFUSING = ("unsupported", "unauthorized")
"""Kinds that operations answer with which refuse every call."""

_OF_KEYS = ("unauthorized", "forbidden", "rate_limited")
"""Kinds that every operation has which needs a key: where the first is listed, the others are meant as well."""

_HEADERS: Mapping[str, tuple[str, ...]] = {
    "overloaded": ("Retry-After",),
    "unavailable": ("Retry-After",),
    "rate_limited": ("Retry-After",),
    "unauthorized": ("WWW-Authenticate",),
}


Shape = Any
"""What a body looks like: a schema, a Struct (or a type made of them) that is sent or read, or a tuple of alternatives."""

Content = Mapping[str, Shape]
"""Bodies by media type."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One status of an operation: when, and what by media type. `headers`: names of header components."""

    description: str
    content: Content = field(default_factory=dict)
    headers: tuple[str, ...] = ()

    def or_else(self, other: Answer) -> Answer:
        """This answer or the other one, under the same status."""
        merged = dict(self.content)
        for media_type, shape in other.content.items():
            merged[media_type] = (*_choices(merged.get(media_type, ())), *_choices(shape))
        words = dict.fromkeys((*self.description.split("; "), *other.description.split("; ")))
        headers = tuple(dict.fromkeys((*self.headers, *other.headers)))
        return Answer("; ".join(words), merged, headers)


Answers = Mapping[int, Answer]


def merged(*parts: Answers) -> dict[int, Answer]:
    """All answers of several families; those of one status are put together."""
    together: dict[int, Answer] = {}
    for part in parts:
        for status, answer in part.items():
            together[status] = together[status].or_else(answer) if status in together else answer
    return dict(sorted(together.items()))


def json_answer(kind: Any, description: str = "the answer", *headers: str) -> Answer:
    """An answer that is a Struct, or made of them, as it is sent."""
    return Answer(description, {JSON_MEDIA_TYPE: kind}, headers)


@dataclass(frozen=True, slots=True)
class ErrorFamily:
    """The errors of one API: the status of every kind, and the bodies of a status."""

    statuses: Mapping[str, int]
    content: Callable[[int], Content]

    def answers(self, kinds: Collection[str] = GENERATING) -> dict[int, Answer]:
        """The errors of these kinds, by status."""
        by_status: dict[int, Answer] = {}
        for kind in dict.fromkeys((*kinds, *(_OF_KEYS if "unauthorized" in kinds else ()))):
            status = self.statuses[kind]
            answer = Answer(KINDS[kind].meaning, self.content(status), _HEADERS.get(kind, ()))
            by_status[status] = by_status[status].or_else(answer) if status in by_status else answer
        return by_status

    def beside(self, answer: Answer, kinds: Collection[str] = GENERATING) -> dict[int, Answer]:
        """An answer with status 200, and the errors of these kinds."""
        return merged({200: answer}, self.answers(kinds))


@dataclass(frozen=True, slots=True)
class JsonErrors(ErrorFamily):
    """Errors whose body is always a Struct, which `body` makes; implements `ErrorTeller`. `headers`: of the answers."""

    body: Callable[[ServerError, HttpCall], Any]
    headers: Callable[[HttpCall], Mapping[str, str]]

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a call that failed."""
        return json_reply(self.statuses[error.kind], self.body(error, http), self.headers(http))


def json_teller(
    statuses: Mapping[str, int],
    kind: type[KindT],
    body: Callable[[ServerError, HttpCall], KindT],
    headers: Callable[[HttpCall], Mapping[str, str]] = lambda http: {},
) -> JsonErrors:
    """Errors whose body is always the same Struct, sent as JSON; `body` makes it. `headers`: of the answers."""
    return JsonErrors(statuses, lambda status: {JSON_MEDIA_TYPE: kind}, body, headers)


def json_errors(statuses: Mapping[str, int], kind: Any) -> ErrorFamily:
    """Errors whose body is always the same Struct, sent as JSON."""
    return ErrorFamily(statuses, lambda status: {JSON_MEDIA_TYPE: kind})


def schema_of_shape(shape: Shape) -> Schema:
    """The schema of a body; those of Structs are made only now, since that takes time."""
    schemas: list[Schema] = []
    for choice in _choices(shape):
        schema = choice if isinstance(choice, dict) else schema_of(choice)
        alternatives = schema["anyOf"] if set(schema) == {"anyOf"} else [schema]
        schemas += [one for one in alternatives if one not in schemas]
    return schemas[0] if len(schemas) == 1 else any_of(*schemas)


def types_of(contents: Iterable[Content]) -> list[Any]:
    """The Structs, and types made of them, that bodies consist of."""
    shapes = [choice for content in contents for shape in content.values() for choice in _choices(shape)]
    return [shape for shape in shapes if not isinstance(shape, dict)]


def _choices(shape: Shape) -> tuple[Any, ...]:
    return shape if isinstance(shape, tuple) else (shape,)
