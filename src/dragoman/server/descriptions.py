"""Words and schemas that APIs describe their operations with: JSON Schemas, components, answers, kinds of errors.

Schemas are JSON Schema 2020-12, as OpenAPI 3.1 uses it. Used when APIs are imported or described.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec

from dragoman.errors import ServerError
from dragoman.parameters import Bounds
from dragoman.server.api import JSON_MEDIA_TYPE, HttpCall, Reply, json_reply

Schema = dict[str, Any]

REFERENCE = "#/components/schemas/"

TEXT: Schema = {"type": "string"}
NON_EMPTY_TEXT: Schema = {"type": "string", "minLength": 1}
BOOLEAN: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer"}
LENIENT_BOOLEAN: Schema = {
    "anyOf": [
        BOOLEAN,
        {"enum": [0, 1]},
        {"type": "string", "pattern": "^([Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]|[01])$"},
    ]
}
NUMBER: Schema = {"type": "number"}
NULL: Schema = {"type": "null"}


def ref(name: str) -> Schema:
    return {"$ref": f"{REFERENCE}{name}"}


def array(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


def any_of(*choices: Schema) -> Schema:
    return {"anyOf": list(choices)}


def an_object(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None, text: str = "") -> Schema:
    """An object; other fields are allowed as well."""
    schema: Schema = {"type": "object", "properties": {**required, **(optional or {})}}
    if required:
        schema["required"] = list(required)
    return {"description": text, **schema} if text else schema


def described(schema: Schema, text: str, default: Any = None) -> Schema:
    return {**({"description": text} if text else {}), **schema, **({} if default is None else {"default": default})}


def nullable(schema: Schema) -> Schema:
    if NULL in schema.get("anyOf", ()):
        return schema
    if "anyOf" in schema and len(schema) == 1:
        return any_of(*schema["anyOf"], NULL)
    return any_of(schema, NULL)


def without_null(schema: Mapping[str, Any]) -> Schema:
    """The schema without its null alternative and its default."""
    choices = [choice for choice in schema.get("anyOf", [schema]) if choice != NULL]
    kept = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    if len(choices) == 1:
        return dict(choices[0]) if "anyOf" in schema else kept
    return {**kept, "anyOf": choices}


def range_of(bounds: Bounds) -> Schema:
    keywords: Schema = {}
    if bounds.low is not None:
        keywords["exclusiveMinimum" if bounds.is_low_open else "minimum"] = bounds.low
    if bounds.high is not None:
        keywords["exclusiveMaximum" if bounds.is_high_open else "maximum"] = bounds.high
    return keywords


def struct_schemas(types: Sequence[Any]) -> dict[str, Schema]:
    """The components of these Structs and of all that they refer to, by class name."""
    _, components = msgspec.json.schema_components(types, ref_template=f"{REFERENCE}{{name}}")
    return {name: dict(schema) for name, schema in components.items()}


@cache  # a document asks a thousand times for some thirty of them
def schema_of(kind: Any) -> Schema:
    """The schema of a Struct, or of a type made of them; refers to `struct_schemas`. Shared: do not change it."""
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=f"{REFERENCE}{{name}}")
    return schema


def references(value: Any) -> Iterator[str]:
    """The names of the components that `value` refers to directly."""
    if isinstance(value, Mapping):
        target = value.get("$ref")
        if isinstance(target, str) and target.startswith(REFERENCE):
            yield target.removeprefix(REFERENCE)
        for child in value.values():
            yield from references(child)
    elif isinstance(value, list):
        for child in value:
            yield from references(child)


def used_components(start: Any, components: Mapping[str, Schema]) -> dict[str, Schema]:
    """The components that can be reached from `start`, sorted by name. Raises: KeyError."""
    used: set[str] = set()
    waiting = list(references(start))
    while waiting:
        name = waiting.pop()
        if name not in used:
            used.add(name)
            waiting.extend(references(components[name]))
    return {name: components[name] for name in sorted(used)}


QUESTION = "What is Deep Learning?"
MESSAGES = [{"role": "user", "content": QUESTION}]
BY_NAME = ("model_name_query", "model_name_header")
VERSIONED = ("model_version_query", "model_version_header")
IGNORED = ("x-dragoman-ignored",)
GENERATED = (*IGNORED, "x-dragoman-timings")
SWITCHES = ("x-dragoman-strict", "x-dragoman-timings")


def parameter(where: str, name: str, text: str, schema: Schema) -> dict[str, Any]:
    """One parameter; `where`: path, query or header."""
    required = {"required": True} if where == "path" else {}
    return {"in": where, "name": name, **required, "description": text, "schema": schema}


def header(text: str, schema: Schema = TEXT) -> dict[str, Any]:
    return {"description": text, "schema": schema}


_WHICH = "the model to use; the default model if absent"
_VERSION = "the version that the model must have"

_SWITCH: Schema = {"enum": ["1", "true", "0", "false"]}

PARAMETERS: Mapping[str, dict[str, Any]] = {
    "x-dragoman-strict": parameter(
        "header", "x-dragoman-strict", "whether parameters without effect are errors; `--strict` if absent", _SWITCH
    ),
    "x-dragoman-timings": parameter(
        "header", "x-dragoman-timings", "whether the answer tells how long it took; `--timings` if absent", _SWITCH
    ),
    "x-request-id": parameter("header", "x-request-id", "names the request in answers and logs", TEXT),
    "name_path": parameter("path", "name", "the model's name", TEXT),
    "model_name_query": parameter("query", "model_name", _WHICH, TEXT),
    "model_name_header": parameter("header", "model_name", f"{_WHICH}; the query wins", TEXT),
    "model_version_query": parameter("query", "model_version", _VERSION, TEXT),
    "model_version_header": parameter("header", "model_version", _VERSION, TEXT),
}
HEADERS: Mapping[str, dict[str, Any]] = {
    "x-request-id": header("the call's own id, or a fresh one"),
    "x-dragoman-ignored": header("names of parameters that were accepted and had no effect, separated by commas"),
    "x-dragoman-timings": header(
        "how long the call took, as JSON, where that was asked for and the body has no room; a trailer in streams"
    ),
    "Retry-After": header("seconds after which to try again", {"type": "integer", "minimum": 1}),
    "Accept-Encoding": header("the codings that bodies of requests may have"),
    "WWW-Authenticate": header("the scheme of the key: Bearer"),
}


class Kind(NamedTuple):
    """One kind of error. `status`: the usual one."""

    status: int
    meaning: str


KINDS: Mapping[str, Kind] = {
    "invalid_request": Kind(400, "the request cannot be served as written"),
    "invalid_payload": Kind(400, "the body is malformed or lacks a field"),
    "invalid_parameter": Kind(400, "a parameter has a wrong type or range, or contradicts another"),
    "unsupported": Kind(400, "this model or engine cannot do it"),
    "not_found": Kind(404, "no such model"),
    "unauthorized": Kind(401, "the API key is missing or wrong"),
    "forbidden": Kind(403, "the API key does not open this"),
    "too_large": Kind(413, "the body exceeds the size limit"),
    "overloaded": Kind(429, "the queue is full"),
    "unavailable": Kind(503, "the server is loading or shutting down"),
    "rate_limited": Kind(429, "the caller has asked for as much as it may for now"),
    "conflict": Kind(409, "it exists already, or is being changed by somebody else"),
    "no_memory": Kind(507, "the model does not fit into the memory that is left"),
    "unknown_path": Kind(404, "there is no such path"),
    "wrong_method": Kind(405, "the path answers to other methods"),
    "timeout": Kind(504, "the request took longer than the operator allows"),
    "cancelled": Kind(503, "the request was aborted"),
    "capacity": Kind(400, "the prompt, or prompt and limit, exceed the context"),
    "engine_failed": Kind(500, "the generation failed"),
    "engine_dead": Kind(503, "the engine has stopped"),
    "hook_error": Kind(500, "the operator's own formatter failed"),
    "server_error": Kind(500, "a defect of the server; see its log"),
}
"""Every kind in `dragoman.errors`."""

INVALID = ("invalid_request", "invalid_payload", "invalid_parameter")
"""The kinds for a mistake in the client's request."""


def statuses(**changes: int) -> dict[str, int]:
    """The status of each kind for an API; `changes` differ from the usual ones."""
    return {kind: changes.get(kind, row.status) for kind, row in KINDS.items()}


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
        schemas += [schema for schema in alternatives if schema not in schemas]
    return schemas[0] if len(schemas) == 1 else any_of(*schemas)


def types_of(contents: Iterable[Content]) -> list[Any]:
    """The Structs, and types made of them, in these bodies."""
    shapes = [choice for content in contents for shape in content.values() for choice in _choices(shape)]
    return [shape for shape in shapes if not isinstance(shape, dict)]


def _choices(shape: Shape) -> tuple[Any, ...]:
    return shape if isinstance(shape, tuple) else (shape,)
