"""Reads the adapters that a call names for its prompts: header, query and body, in this order.

Source: LMI's adapters schema; the header is SageMaker's, for inference components with adapters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.errors import InvalidPayload, ServerError
from dragoman.server.api import Call, Dialect, HttpCall, Opening, Reply
from dragoman.server.apis.lmi_wire.body import ADAPTERS, show
from dragoman.types import GenerationRequest

QUERY = "adapter"
HEADER = "x-amzn-sagemaker-adapter-identifier"


def with_adapters(requests: Sequence[GenerationRequest], in_body: Any, http: HttpCall) -> tuple[GenerationRequest, ...]:
    """The requests, each with the adapter that the call names for it. Raises: InvalidPayload."""
    named = http.headers.get(HEADER) or http.query.get(QUERY)
    if named is None and in_body is None:
        return tuple(requests)
    names = in_body if named is None and isinstance(in_body, list) else [named or in_body] * len(requests)
    if len(names) != len(requests) or not all(isinstance(name, str) for name in names):
        raise InvalidPayload(
            f"Field '{ADAPTERS}' must be a name, or an array of one name for each of {len(requests)} inputs, "
            f"got {show(in_body)}",
            param=ADAPTERS,
        )
    return tuple(msgspec.structs.replace(request, adapter=name) for request, name in zip(requests, names, strict=True))


class WithAdapters:
    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def open(self, http: HttpCall) -> Opening:
        opening = self._dialect.open(http)

        def parse() -> Call:
            call = opening.parse()
            requests = with_adapters(call.requests, http.field(ADAPTERS), http)
            return msgspec.structs.replace(
                call, requests=requests, ignored=tuple(name for name in call.ignored if name != ADAPTERS)
            )

        return msgspec.structs.replace(opening, parse=parse)

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        return self._dialect.error_reply(error, http)
