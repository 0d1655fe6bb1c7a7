"""The document that describes a server, without one."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec

from dragoman.server.api import ModelProfile
from dragoman.server.apis import all_apis
from dragoman.server.openapi import openapi_document
from dragoman.server.operations import Operation


def live_operations() -> list[Operation]:
    """Every operation of a server that `dragoman serve` starts."""
    return [operation for api in all_apis() for operation in api.operations]


def live_document(profile: ModelProfile | None = None) -> Any:
    """The OpenAPI document of those operations, as a client decodes it."""
    return json.loads(_usual() if profile is None else _encoded(profile))


@cache
def _usual() -> bytes:
    """Encoded once: many modules of tests ask for it when they are imported."""
    return _encoded(ModelProfile())


def _encoded(profile: ModelProfile) -> bytes:
    return msgspec.json.encode(openapi_document(all_apis(), profile))
