"""The OpenAPI document (3.1.0) of the running server, from the operations of all APIs. Leaves out unused components."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from dragoman import __version__
from dragoman.server.api import ModelProfile
from dragoman.server.descriptions import (
    HEADERS,
    PARAMETERS,
    SWITCHES,
    Answer,
    Content,
    schema_of_shape,
    struct_schemas,
    types_of,
    used_components,
)
from dragoman.server.operations import Api, Components, GenerateOperation, Operation
from dragoman.server.security.callers import Scope
from dragoman.server.security.gate import KEY_HEADERS

_SCHEMES = ("bearer", *KEY_HEADERS)
_UNREADABLE = (400, 422, 424)  # the statuses with which APIs tell that a body cannot be read

NeedsKey = Callable[[Scope], bool]

_DESCRIPTION = """\
One inference server, several client APIs over the same engine.

In every body null means "not given". Unknown parameters are accepted and named in `x-dragoman-ignored`. Every path answers
OPTIONS with an `Allow` header, GET paths answer HEAD; other methods are 405, unknown paths 404. These two, bodies that are
too large and wrong keys are told in the shape of the API that the path belongs to:
"""


def openapi_document(
    apis: Sequence[Api], profile: ModelProfile, needs_key: NeedsKey = lambda scope: False
) -> dict[str, Any]:
    """The document for these APIs, with the options of the default model's `profile`."""
    operations = [operation for api in apis for operation in api.operations]
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, needs_key)
    contents = [content for operation in operations for content in _contents(operation)]
    schemas = _joined([struct_schemas(types_of(contents)), *(api.schemas(profile) for api in apis)])
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "dragoman",
            "version": __version__,
            "description": f"{_DESCRIPTION}{_owners_text(apis)}.\n{_options_text(apis, profile)}",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "."}],
        "tags": [{"name": name} for name in dict.fromkeys(operation.tag for operation in operations)],
        "paths": paths,
        "components": {
            "schemas": used_components(paths, schemas),
            "parameters": _joined([PARAMETERS, *(api.parameters for api in apis)]),
            "headers": _joined([HEADERS, *(api.headers for api in apis)]),
        },
    }
    if any(needs_key(operation.scope) for operation in operations):
        named = {name: {"type": "apiKey", "in": "header", "name": name} for name in KEY_HEADERS}
        document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}, **named}
    return document


def _joined(parts: Iterable[Components]) -> dict[str, Any]:
    """All components by name. Raises: ValueError if two APIs define one name differently."""
    together: dict[str, Any] = {}
    for part in parts:
        for name, component in part.items():
            if together.setdefault(name, component) != component:
                raise ValueError(f"two APIs describe component {name} differently")
    return together


def _owners_text(apis: Sequence[Api]) -> str:
    owners = {owned: api.title for api in apis for owned in api.owns}
    return ", ".join(f"`{owned}` {owners[owned]}" for owned in sorted(owners) if owned) + f", all others {owners['']}"


def _options_text(apis: Sequence[Api], profile: ModelProfile) -> str:
    options = [text for api in apis if (text := api.description(profile))]
    return f"\nOptions of the default model: {', '.join(options)}.\n" if options else ""


def _contents(operation: Operation) -> Iterator[Content]:
    yield operation.body
    yield from (answer.content for answer in operation.answers.values())


def _operation(operation: Operation, needs_key: NeedsKey) -> dict[str, Any]:
    switches = (*(SWITCHES if isinstance(operation, GenerateOperation) else ()), "x-request-id")
    item: dict[str, Any] = {
        "tags": [operation.tag],
        "summary": operation.summary,
        "operationId": _operation_id(operation.method, operation.path),
        "parameters": [{"$ref": f"#/components/parameters/{name}"} for name in (*operation.parameters, *switches)],
        "responses": {str(status): _response(answer) for status, answer in operation.answers.items()},
    }
    if operation.description:
        item["description"] = operation.description
    if operation.body:
        item["requestBody"] = _request_body(operation)
        item["responses"]["415"] = _response(_not_unpacked(operation))
    if needs_key(operation.scope):  # any of the schemes, with a key of that scope
        item["security"] = [{scheme: [str(operation.scope)]} for scheme in _SCHEMES]
    return item


def _not_unpacked(operation: Operation) -> Answer:
    """The answer to an unsupported Content-Encoding, in the shape of the answer to an unreadable body."""
    answers = [answer for status, answer in operation.answers.items() if status in _UNREADABLE]
    whole = reduce(Answer.or_else, answers, Answer("", {}))
    return replace(whole, description="the body is packed in a way that is not taken", headers=("Accept-Encoding",))


def _operation_id(method: str, path: str) -> str:
    """A name that code generators can use, unique for each operation."""
    words = re.findall(r"[A-Za-z0-9]+", path) or ["root"]
    return "_".join((method.lower(), *words))


def _request_body(operation: Operation) -> dict[str, Any]:
    content = _media_types(operation.body)
    first = next(iter(content))
    if operation.example is not None:
        content[first] = {**content[first], "example": operation.example}
    return {"required": not operation.is_body_optional, "content": content}


def _response(answer: Answer) -> dict[str, Any]:
    names = ("x-request-id", *answer.headers)
    response: dict[str, Any] = {
        "description": answer.description,
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names},
    }
    if answer.content:
        response["content"] = _media_types(answer.content)
    return response


def _media_types(content: Content) -> dict[str, Any]:
    return {media_type: {"schema": schema_of_shape(shape)} for media_type, shape in content.items()}
