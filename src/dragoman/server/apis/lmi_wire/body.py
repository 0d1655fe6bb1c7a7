"""Reads the body of an LMI or TGI request: JSON, plain text, URL-encoded and multipart forms become one `Payload`.

On the event loop. Everything here raises InvalidPayload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from python_multipart.multipart import parse_options_header

from dragoman.errors import InvalidPayload
from dragoman.server.api import JSON_MEDIA_TYPE, HttpCall
from dragoman.server.descriptions import NON_EMPTY_TEXT, TEXT, Schema, an_object, any_of, array, described, ref
from dragoman.server.http.bodies import MULTIPART, check_count, read_parts
from dragoman.server.json_body import NotJson, check_fields, decode_json, shown_json

FORM = "application/x-www-form-urlencoded"
CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "windows-1252"})
ADAPTERS = "adapters"
MAX_SHOWN = 80  # characters of a refused value that an error message repeats
KNOWN_FIELDS = frozenset({"inputs", "parameters", "stream", "model_name"})  # the operations choose the model


def show(value: Any) -> str:
    return shown_json(value, MAX_SHOWN)


def read_boolean(value: Any) -> bool:
    """True, false, and what Python clients write for them. Raises: ValueError."""
    if isinstance(value, str):
        value = value.strip().lower()
    for meant, words in ((True, (True, "true", "1")), (False, (False, "false", "0"))):
        if value in words:
            return meant
    raise ValueError


class Payload(msgspec.Struct, frozen=True):
    """A request before its parameters are read. `inputs` is as sent; `unknown` names top-level fields without meaning.

    `stream`: what the top level says; it wins over the parameter of that name. `adapters`: as sent; among `unknown` as well,
    as a model without adapters has no use for them.
    """

    inputs: Any
    parameters: Mapping[str, Any] = msgspec.field(default_factory=dict)
    stream: bool | None = None
    unknown: tuple[str, ...] = ()
    adapters: Any = None


def read_payload(http: HttpCall) -> Payload:
    match http.media_type:
        case "" | "application/json":
            return _from_object(_json_body(http))
        case "text/plain":
            return Payload(_text(http.body, http))
        case media_type if media_type == FORM and http.body.lstrip().startswith(b"{"):
            return _from_object(_json_body(http))  # `curl -d` with JSON and no header says it is a form
        case media_type if media_type == FORM:
            fields: dict[str, list[str]] = {}
            for name, value in form_fields(http.body, lambda body: _text(body, http), keep_blank_values=True):
                fields.setdefault(name, []).append(value)
            return _from_form(fields)
        case media_type if media_type == MULTIPART:
            fields = {}
            for name, content, _ in read_parts(http):
                fields.setdefault(name, []).append(_part_text(name, content))
            return _from_form(fields)
        case media_type:
            raise InvalidPayload(
                f"Content type '{media_type}' is not supported: send application/json, text/plain, {FORM} or {MULTIPART}",
                param="content-type",
            )


def _from_object(body: Any) -> Payload:
    if not isinstance(body, dict):
        raise InvalidPayload(f"The body must be a JSON object with the field 'inputs', got {show(body)}")
    present = {name: value for name, value in body.items() if value is not None}
    parameters = present.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidPayload(f"Field 'parameters' must be an object, got {show(parameters)}", param="parameters")
    try:
        check_fields(parameters)
    except NotJson as error:
        raise InvalidPayload(error.of("Field 'parameters'"), param="parameters") from error
    return Payload(
        inputs=present.get("inputs"),
        parameters=parameters,
        stream=_stream(present["stream"]) if "stream" in present else None,
        unknown=tuple(name for name in present if name not in KNOWN_FIELDS),
        adapters=present.get(ADAPTERS),
    )


def _stream(value: Any) -> bool:
    try:
        return read_boolean(value)
    except ValueError as error:
        raise InvalidPayload(f"Field 'stream' must be a boolean, got {show(value)}", param="stream") from error


def form_fields(
    body: bytes,
    as_text: Callable[[bytes], str] = lambda body: body.decode("utf-8", "replace"),
    *,
    keep_blank_values: bool,
) -> list[tuple[str, str]]:
    """The fields of an URL-encoded form, in order. Raises: InvalidPayload for more than are read one by one."""
    check_count(body.count(b"&"))
    return parse_qsl(as_text(body), keep_blank_values=keep_blank_values)


def _from_form(fields: Mapping[str, list[str]]) -> Payload:
    body: dict[str, Any] = {name: values[-1] for name, values in fields.items()}
    inputs = fields.get("inputs", [])
    if len(inputs) > 1:
        body["inputs"] = inputs
    if body.get("parameters") == "":
        del body["parameters"]
    if "parameters" in body:
        try:
            body["parameters"] = decode_json(body["parameters"].encode())
        except NotJson as error:
            raise InvalidPayload(error.of("Field 'parameters'")) from error
    return _from_object(body)


def _json_body(http: HttpCall) -> Any:
    try:
        return http.json()
    except NotJson as error:
        raise InvalidPayload(error.of("The body")) from error


def _text(content: bytes, http: HttpCall) -> str:
    _, options = parse_options_header(http.headers.get("content-type", ""))
    charset = options.get(b"charset", b"utf-8").decode("latin-1").lower()
    if charset not in CHARSETS:
        raise InvalidPayload(f"Charset '{charset}' is not supported: send one of {', '.join(sorted(CHARSETS))}")
    try:
        return content.decode(charset)
    except UnicodeDecodeError as error:
        raise InvalidPayload(f"The body is not text in the charset '{charset}': {error}") from error


def _part_text(name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        fault = InvalidPayload(f"Field '{name}' is not UTF-8 text: {error}", param=name)
        fault.names_parameter = False
        raise fault from error


def body_schemas(of_json: Schema) -> dict[str, Schema]:
    """The schema of a body by media type; `LmiForm` is the component `FORM_SCHEMA`."""
    return {
        JSON_MEDIA_TYPE: of_json,
        "text/plain": {**TEXT, "minLength": 1, "description": "the prompt"},
        FORM: ref("LmiForm"),
        MULTIPART: ref("LmiForm"),
    }


FORM_SCHEMA = an_object(
    {"inputs": described(any_of(NON_EMPTY_TEXT, array(NON_EMPTY_TEXT)), "the prompt; repeated, several prompts")},
    {"parameters": described(TEXT, "`parameters` as JSON text"), "stream": described(TEXT, "true or false")},
)
