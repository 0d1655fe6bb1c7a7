"""Builds the OpenAPI document from the live route table.

Does: put routes, operations, schemas and errors together; leave out what no route uses. Does not: answer requests.
Called once, when the document is first asked for, on the event loop. Source: OpenAPI Specification 3.1.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman import __version__
from dragoman.server.openapi import answers, errors, lmi_bodies, openai_bodies
from dragoman.server.openapi.errors import Answer, front_answer
from dragoman.server.openapi.facts import ApiFacts
from dragoman.server.openapi.json_schema import TEXT, used_components
from dragoman.server.openapi.management_operations import HEADERS, MANAGEMENT, PARAMETERS
from dragoman.server.openapi.operations import INFERENCE, Key, Operation
from dragoman.server.openapi.token_operations import TOKENS, token_schemas
from dragoman.server.routes import KEY_HEADERS, Route

OPERATIONS: Mapping[Key, Operation] = {**INFERENCE, **TOKENS, **MANAGEMENT}

UNDESCRIBED = "x-undescribed"
"""Marks a route that was added without a description; a test allows none."""

_SECURITY: list[dict[str, list[str]]] = [{scheme: []} for scheme in ("bearer", *KEY_HEADERS)]

_DESCRIPTION = """\
One inference server, several client APIs over the same engine.

In every body null means "not given". Unknown parameters are accepted and named in `x-dragoman-ignored`. Every path answers
OPTIONS with an `Allow` header, GET paths answer HEAD; other methods are 405, unknown paths 404. These two, bodies that are
too large and wrong keys are told in the shape of the API that the path belongs to: `/v1` OpenAI's (`/v1/messages`
Anthropic's), `/v3` OpenVINO Model Server's, `/api` `{"error"}`, `/generate` and `/info` Text Generation Inference's, all
others LMI's `{"code", "type", "message"}`.
"""


def openapi_document(routes: Sequence[Route], facts: ApiFacts) -> dict[str, Any]:
    """The document for these routes, as it is written to JSON."""
    paths = {route.path: _path_item(route, facts) for route in routes if route.handlers}
    schemas = {
        **openai_bodies.request_bodies(facts),
        **lmi_bodies.request_bodies(facts),
        **answers.answer_schemas(),
        **errors.error_schemas(),
        **token_schemas(),
    }
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "dragoman",
            "version": __version__,
            "description": _DESCRIPTION + _options_text(facts),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": _tags(paths),
        "paths": paths,
        "components": {
            "schemas": used_components(paths, schemas),
            "parameters": dict(PARAMETERS),
            "headers": dict(HEADERS),
        },
    }
    if facts.needs_key:
        named = {name: {"type": "apiKey", "in": "header", "name": name} for name in KEY_HEADERS}
        document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}, **named}
    return document


def _options_text(facts: ApiFacts) -> str:
    lmi = facts.lmi
    return (
        f"\nOptions of the default model: rolling_batch={lmi.rolling_batch}, lmi_version={lmi.lmi_version}, "
        f"tgi_compat={str(lmi.tgi_compat).lower()}, chat_format={facts.chat_format}, "
        f"lmi_strict={str(facts.lmi_strict).lower()}.\n"
    )


def _tags(paths: Mapping[str, Mapping[str, Any]]) -> list[dict[str, str]]:
    names = (tag for item in paths.values() for operation in item.values() for tag in operation["tags"])
    return [{"name": name} for name in dict.fromkeys(names)]


def _path_item(route: Route, facts: ApiFacts) -> dict[str, Any]:
    return {method.lower(): _operation(method, route.path, facts) for method in sorted(route.handlers)}


def _operation(method: str, path: str, facts: ApiFacts) -> dict[str, Any]:
    described = OPERATIONS.get((method, path))
    operation = described or _unknown(path)
    item: dict[str, Any] = {
        "tags": [operation.tag],
        "summary": operation.summary,
        "operationId": _operation_id(method, path),
        "parameters": [{"$ref": f"#/components/parameters/{name}"} for name in (*operation.parameters, "x-request-id")],
        "responses": {str(status): _response(answer) for status, answer in operation.answers.items()},
    }
    if described is None:
        item[UNDESCRIBED] = True
        item["parameters"] += [_path_parameter(name) for name in re.findall(r"{(\w+)}", path)]
    if operation.description:
        item["description"] = operation.description
    if operation.body:
        item["requestBody"] = _request_body(operation)
    if facts.needs_key and operation.needs_key:
        item["security"] = _SECURITY
    return item


def _unknown(path: str) -> Operation:
    return Operation("Other", path, {200: Answer("the answer"), 500: front_answer("it failed")})


def _path_parameter(name: str) -> dict[str, Any]:
    return {"in": "path", "name": name, "required": True, "schema": TEXT}


def _operation_id(method: str, path: str) -> str:
    """A name that code generators can use, different for every operation."""
    words = re.findall(r"[A-Za-z0-9]+", path) or ["root"]
    return "_".join((method.lower(), *words))


def _request_body(operation: Operation) -> dict[str, Any]:
    content = {media_type: {"schema": schema} for media_type, schema in operation.body.items()}
    first = next(iter(content))
    content[first] = {**content[first], "example": operation.example}
    return {"required": True, "content": content}


def _response(answer: Answer) -> dict[str, Any]:
    names = ("x-request-id", *answer.headers)
    response: dict[str, Any] = {
        "description": answer.description,
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names},
    }
    if answer.content:
        response["content"] = {media_type: {"schema": schema} for media_type, schema in answer.content.items()}
    return response
