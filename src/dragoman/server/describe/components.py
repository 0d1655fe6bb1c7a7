"""Parameters and headers that operations of several APIs share, as components of the document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.server.describe.json_schema import TEXT, Schema

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
