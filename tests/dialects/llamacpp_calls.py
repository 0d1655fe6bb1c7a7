"""llama.cpp's dialects as its tests use them."""

from __future__ import annotations

import json
from typing import Any

from dragoman.server.api import Call, HttpCall, ModelProfile
from dragoman.server.apis.llamacpp.api import set_up
from tests.support.real_dialects import fake_profile

GAP: dict[str, Any] = {"input_prefix": "def a():\n", "input_suffix": "\n"}


def parsed(path: str, body: dict[str, Any], profile: ModelProfile | None = None) -> Call:
    """The call of a body."""
    dialect = set_up(profile or fake_profile())[f"llamacpp.{path[1:]}"]
    http = HttpCall("POST", path, json.dumps(body).encode(), {"content-type": "application/json"}, request_id="r")
    return dialect.open(http).parse()


def complete(profile: ModelProfile | None = None, **body: Any) -> Call:
    """A call of /completion, parsed."""
    return parsed("/completion", {"prompt": "Hello", **body}, profile)


def infill(profile: ModelProfile | None = None, **body: Any) -> Call:
    """A call of /infill, parsed."""
    return parsed("/infill", {**GAP, **body}, profile)
