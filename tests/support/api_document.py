"""Compares requests and answers with an OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from dragoman.server.api import JSONLINES_MEDIA_TYPE, NDJSON_MEDIA_TYPE, SSE_MEDIA_TYPE
from dragoman.server.descriptions import used_components

Document = Mapping[str, Any]


def resolved(document: Document, value: Any) -> Any:
    """What `value` refers to, itself if it is no reference."""
    while isinstance(value, dict) and "$ref" in value:
        target: Any = document
        for step in value["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        value = target
    return value


@dataclass
class Checker:
    """A document and the validators made from it, which are costly to make."""

    document: Document
    _validators: dict[str, Draft202012Validator] = field(default_factory=dict)
    _passed: set[tuple[object, ...]] = field(default_factory=set)

    def body(self, path: str, media_type: str = "application/json") -> Draft202012Validator:
        """The validator of what is posted to `path`."""
        content = self.document["paths"][path]["post"]["requestBody"]["content"]
        return self._validator(f"body {path} {media_type}", content[media_type]["schema"], is_closed=False)

    def answer(self, key: tuple[str, str], status: int, media_type: str, schema: Any) -> Draft202012Validator:
        """The validator of an answer, which has no room for fields that are not documented."""
        return self._validator(f"answer {key} {status} {media_type}", schema, is_closed=True)

    def _validator(self, name: str, schema: Any, *, is_closed: bool) -> Draft202012Validator:
        if name not in self._validators:
            components = used_components(schema, self.document["components"]["schemas"])
            whole = {**schema, "components": {"schemas": components}}
            self._validators[name] = Draft202012Validator(closed(whole) if is_closed else whole)
        return self._validators[name]

    def is_documented(self, path: str, body: Any) -> bool:
        """Whether the document allows this JSON body."""
        return bool(self.body(path).is_valid(body))

    def check_answer(self, key: tuple[str, str], status: int, media_type: str, body: bytes) -> None:
        """Assert that an answer to (method, path) is one that the document promises."""
        asked = (key, status, media_type, body)
        if asked in self._passed:
            return
        method, path = key
        responses = self.document["paths"][path][method.lower()]["responses"]
        assert str(status) in responses, f"{key} answers {status}, documented are {', '.join(responses)}"
        content = responses[str(status)].get("content", {})
        if not body and not content:
            return
        assert media_type in content, f"{key} answers {media_type} with {status}, documented are {', '.join(content)}"
        check = self.answer(key, status, media_type, content[media_type]["schema"])
        for value in values_of(media_type, body):
            problems = [f"{error.json_path}: {error.message}" for error in check.iter_errors(value)]
            assert not problems, f"{key} {status} {value}: {problems}"
        self._passed.add(asked)


def closed(schema: Any) -> Any:
    """The schema without room for undocumented fields."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    limit = {"additionalProperties": False} if "properties" in schema else {}
    return {**limit, **{name: closed(value) for name, value in schema.items()}}


def values_of(media_type: str, body: bytes) -> Iterator[Any]:
    """The values in a body that its schema is about."""
    text = body.decode("utf-8", "replace")
    if media_type in (JSONLINES_MEDIA_TYPE, NDJSON_MEDIA_TYPE):
        yield from (json.loads(line) for line in text.split("\n") if line)  # text may hold other line separators
    elif media_type == SSE_MEDIA_TYPE:
        events = (line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: "))
        yield from (json.loads(event) for event in events if event != "[DONE]")
    elif media_type.startswith("application/json"):
        yield json.loads(text)
    else:
        yield text
