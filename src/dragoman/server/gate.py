"""What every call has to pass before its body is read: the API key.

Does: compare keys. Does not: know operations. Called by the endpoints, on the event loop.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from dragoman.errors import Unauthorized
from dragoman.server.api import HttpCall

KEY_HEADERS = ("api-key", "x-api-key")  # beside `Authorization: Bearer`: those of Azure's and of Anthropic's clients


@dataclass(frozen=True, slots=True)
class Gate:
    """What every inference call has to pass before its body is parsed. `api_keys` empty = open to all."""

    max_request_size_bytes: int
    api_keys: frozenset[str]

    def check_key(self, http: HttpCall) -> None:
        """Raises: Unauthorized unless the call carries one of the keys, where clients of any of the APIs put it."""
        if not self.api_keys:
            return
        scheme, _, token = http.headers.get("authorization", "").partition(" ")
        named = [http.headers.get(name, "") for name in KEY_HEADERS]
        texts = [*named, token] if scheme.lower() == "bearer" else named
        given = [text.strip().encode("latin-1", "replace") for text in texts]
        # every key is compared, in constant time, so that the time taken tells nothing about them
        matches = [hmac.compare_digest(text, key.encode()) for key in self.api_keys for text in given]
        if not any(matches):
            raise Unauthorized(
                "The API key is missing or wrong: send it as `Authorization: Bearer`, `api-key` or `x-api-key`"
            )
