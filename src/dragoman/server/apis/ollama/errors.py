"""Errors as Ollama's clients read them. On the event loop. Source: Ollama's server, routes; its Python client."""

from __future__ import annotations

import re

import msgspec

from dragoman.errors import ServerError
from dragoman.server.api import HttpCall, model_of_body
from dragoman.server.apis.openai_wire.profile import MAX_SHOWN_LENGTH
from dragoman.server.describe.answers import json_teller
from dragoman.server.error_kinds import statuses

STATUSES = statuses(overloaded=503, engine_dead=500)

_PICTURE = re.compile(r"messages\[(\d+)\]\.content\[(\d+)\](?:\.image_url(?:\.url)?| of type image_url)")


class OllamaError(msgspec.Struct):
    """The body of an error, and the last line of a stream that broke off."""

    error: str


def told(error: ServerError, http: HttpCall) -> str:
    """The error in one line, with places in the neutral request replaced by their names in this API."""
    if error.kind == "not_found" and error.param == "model" and (name := model_of_body(http, None)):
        return not_found(name)
    if not error.param or not error.param.startswith("messages"):
        return error.message
    # A prompt is one turn of a conversation here.
    place = r"images[\2]" if http.field("messages") is None else r"messages[\1].images[\2]"
    return _PICTURE.sub(place, error.message)


def not_found(name: str) -> str:
    """The error for a model that is not served; a long name is cut."""
    return f"model '{' '.join(name[:MAX_SHOWN_LENGTH].split())}' not found"


ERRORS = json_teller(STATUSES, OllamaError, lambda error, http: OllamaError(told(error, http)))
