"""Reads the body of an LMI or TGI request, whatever its content type.

Does: JSON, plain text, URL-encoded and multipart forms -> one `Payload`. Does not: look into `parameters`.
Called by the LMI and TGI dialects, on the event loop. Everything here raises InvalidPayload.
"""

from __future__ import annotations

import email.parser
import email.policy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from dragoman.errors import InvalidPayload
from dragoman.server.dialects.base import HttpCall
from dragoman.server.dialects.json_body import NotJson, decode_json
from dragoman.server.dialects.lmi_values import read_boolean, show

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "windows-1252"})
KNOWN_FIELDS = frozenset({"inputs", "parameters", "stream", "model_name"})  # the routes choose the model


@dataclass(frozen=True, slots=True)
class Payload:
    """A request before its parameters are read. `inputs` is as sent; `unknown` names top-level fields without meaning.

    `stream`: what the top level says, None if it says nothing; it wins over the parameter of that name.
    """

    inputs: Any
    parameters: Mapping[str, Any] = field(default_factory=dict)
    stream: bool | None = None
    unknown: tuple[str, ...] = ()


def read_payload(http: HttpCall) -> Payload:
    """The payload of a call. Raises: InvalidPayload naming what is wrong with the body."""
    match http.media_type:
        case "" | "application/json":
            return _from_object(_json(http.body, "The body"))
        case "text/plain":
            return Payload(_text(http.body, http))
        case media_type if media_type == FORM and http.body.lstrip().startswith(b"{"):
            return _from_object(_json(http.body, "The body"))  # `curl -d` with JSON and no header says it is a form
        case media_type if media_type == FORM:
            pairs = parse_qs(_text(http.body, http), keep_blank_values=True)
            return _from_form({name: list(values) for name, values in pairs.items()})
        case media_type if media_type == MULTIPART:
            return _from_form(_multipart(http))
        case media_type:
            raise InvalidPayload(
                f"Content type '{media_type}' is not supported: send application/json, text/plain, {FORM} or {MULTIPART}",
                param="content-type",
            )


def _from_object(body: Any) -> Payload:
    if not isinstance(body, dict):
        raise InvalidPayload(f"The body must be a JSON object with the field 'inputs', got {show(body)}")
    given = {name: value for name, value in body.items() if value is not None}
    parameters = given.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidPayload(f"Field 'parameters' must be an object, got {show(parameters)}", param="parameters")
    return Payload(
        inputs=given.get("inputs"),
        parameters=parameters,
        stream=_stream(given["stream"]) if "stream" in given else None,
        unknown=tuple(name for name in given if name not in KNOWN_FIELDS),
    )


def _stream(value: Any) -> bool:
    try:
        return read_boolean(value)
    except ValueError as error:
        raise InvalidPayload(f"Field 'stream' must be a boolean, got {show(value)}", param="stream") from error


def _from_form(fields: Mapping[str, list[str]]) -> Payload:
    """A form's fields: `inputs` as often as there are prompts, `parameters` as JSON."""
    body: dict[str, Any] = {name: values[-1] for name, values in fields.items()}
    inputs = fields.get("inputs", [])
    if len(inputs) > 1:
        body["inputs"] = inputs
    if body.get("parameters") == "":
        del body["parameters"]
    if "parameters" in body:
        body["parameters"] = _json(body["parameters"].encode(), "Field 'parameters'")
    return _from_object(body)


def _json(content: bytes, what: str) -> Any:
    try:
        return decode_json(content)
    except NotJson as error:
        raise InvalidPayload(f"{what} is not valid JSON: {error}") from error


def _text(content: bytes, http: HttpCall) -> str:
    charset = _content_headers(http).get_content_charset("utf-8")
    if charset not in CHARSETS:
        raise InvalidPayload(f"Charset '{charset}' is not supported: send one of {', '.join(sorted(CHARSETS))}")
    try:
        return content.decode(charset)
    except UnicodeDecodeError as error:
        raise InvalidPayload(f"The body is not text in the charset '{charset}': {error}") from error


def _multipart(http: HttpCall) -> dict[str, list[str]]:
    head = f"content-type: {http.headers['content-type']}\r\n\r\n".encode()
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + http.body)
    if not message.is_multipart():
        raise InvalidPayload("The multipart body does not contain the boundary that its content type names")
    fields: dict[str, list[str]] = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(content, bytes):
            fields.setdefault(name, []).append(_part_text(name, content))
    return fields


def _part_text(name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidPayload(f"Field '{name}' is not UTF-8 text: {error}", param=name) from error


def _content_headers(http: HttpCall) -> email.message.EmailMessage:
    message = email.message.EmailMessage()
    message["content-type"] = http.headers.get("content-type", "text/plain")
    return message
