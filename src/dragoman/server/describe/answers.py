"""The answers of an operation as its description lists them: by status, with what each kind of error means in words.

Does: put answers of one status together. Does not: know any API's statuses or bodies.
Used by the APIs when they are imported, and when the OpenAPI document is built.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.errors import ALL_KINDS
from dragoman.server.describe.json_schema import Schema, any_of, schema_of
from dragoman.server.framing import JSON_MEDIA_TYPE

WORDS: Mapping[str, str] = {
    "invalid_request": "the request cannot be served as written",
    "invalid_payload": "the body is malformed or lacks a field",
    "invalid_parameter": "a parameter has a wrong type or range, or contradicts another",
    "unsupported": "this model or engine cannot do it",
    "not_found": "no such model",
    "unauthorized": "the API key is missing or wrong",
    "too_large": "the body exceeds the size limit",
    "overloaded": "the queue is full",
    "unavailable": "the server is loading or shutting down",
    "conflict": "it exists already, or is being changed by somebody else",
    "no_memory": "the model does not fit into the memory that is left",
    "unknown_path": "there is no such path",
    "wrong_method": "the path answers to other methods",
    "timeout": "the request took longer than the operator allows",
    "cancelled": "the request was aborted",
    "capacity": "the prompt, or prompt and limit, exceed the context",
    "engine_failed": "the generation failed",
    "engine_dead": "the engine has stopped",
    "hook_error": "the operator's own formatter failed",
    "server_error": "a defect of the server; see its log",
}
"""When each kind of error is answered, in words."""

_ELSEWHERE = ("unknown_path", "wrong_method", "conflict", "no_memory")

GENERATING = tuple(kind for kind in ALL_KINDS if kind not in _ELSEWHERE)
"""Kinds that operations which generate answer with; the others tell that there is none, or concern loading models."""

LOADING = ("unavailable", "engine_dead")
"""Kinds that tell of a model which is not there yet, or not any more."""

_HEADERS: Mapping[str, tuple[str, ...]] = {
    "overloaded": ("Retry-After",),
    "unavailable": ("Retry-After",),
    "unauthorized": ("WWW-Authenticate",),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One status of an operation: when, and what by media type.

    `headers`: names of header components. `types`: Structs, or types made of them, that are sent as JSON.
    """

    description: str
    content: Mapping[str, Schema] = field(default_factory=dict)
    headers: tuple[str, ...] = ()
    types: tuple[Any, ...] = ()

    def schemas(self) -> dict[str, Schema]:
        """The schemas by media type; made of the types only now, since that takes time."""
        schemas = dict(self.content)
        for kind in self.types:
            schemas[JSON_MEDIA_TYPE] = _either(schemas.get(JSON_MEDIA_TYPE), schema_of(kind))
        return schemas

    def or_else(self, other: Answer) -> Answer:
        """This answer or the other one, under the same status."""
        merged = dict(self.content)
        for media_type, schema in other.content.items():
            merged[media_type] = _either(merged.get(media_type), schema)
        words = dict.fromkeys((*self.description.split("; "), *other.description.split("; ")))
        headers = tuple(dict.fromkeys((*self.headers, *other.headers)))
        return Answer("; ".join(words), merged, headers, tuple(dict.fromkeys((*self.types, *other.types))))


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
    return Answer(description, {}, headers, (kind,))


@dataclass(frozen=True, slots=True)
class ErrorFamily:
    """How one API tells errors: the status of every kind, and what bodies a status has, by media type."""

    statuses: Mapping[str, int]
    content: Callable[[int], Mapping[str, Schema]]

    def answers(self, kinds: Collection[str] = GENERATING) -> dict[int, Answer]:
        """The errors of these kinds, by status."""
        by_status: dict[int, Answer] = {}
        for kind in kinds:
            status = self.statuses[kind]
            answer = Answer(WORDS[kind], self.content(status), _HEADERS.get(kind, ()))
            by_status[status] = by_status[status].or_else(answer) if status in by_status else answer
        return by_status


def _either(one: Schema | None, other: Schema) -> Schema:
    if one is None or one == other:
        return other
    choices = one["anyOf"] if set(one) == {"anyOf"} else [one]
    return one if other in choices else any_of(*choices, other)
