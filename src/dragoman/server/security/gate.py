"""The door of every operation: whose key a call has, whether that opens it, and how much its caller may still ask for.

Does: check the head before the body is read, and a signed body after it; note the caller on the exchange; know how large
bodies may be, one and all. Does not: read bodies or files. Made by the app, used by the endpoints on the event loop;
`keyring` is replaced when keys have changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from dragoman.errors import Forbidden, RateLimited, Unauthorized
from dragoman.server.api import MAX_INLINE_BYTES
from dragoman.server.http.bodies import DEFAULT_BODY_MEMORY_BYTES, Bodies
from dragoman.server.http.exchange import Exchange
from dragoman.server.security.browsers import Visitors
from dragoman.server.security.callers import Caller
from dragoman.server.security.keyring import Keyring
from dragoman.server.security.rate_limits import RateLimits
from dragoman.server.security.scopes import Scope
from dragoman.server.security.sigv4 import RawHead, SignedRequest, is_signed, read_signature

KEY_HEADERS = ("api-key", "x-api-key")  # beside `Authorization: Bearer`: those of Azure's and of Anthropic's clients

CheckBody = Callable[[bytes], Awaitable[None]]
"""Lets a call pass whose body is signed. Raises: as `Gate.check`."""


class Gate:
    """Checks every call. `keyring` None = no call needs a key. `open_scopes`: scopes that need no key even so."""

    def __init__(
        self,
        max_request_size_bytes: int,
        keyring: Keyring | None = None,
        open_scopes: frozenset[Scope] = frozenset(),
        limits: RateLimits | None = None,
        max_body_memory_bytes: int = DEFAULT_BODY_MEMORY_BYTES,
        visitors: Visitors | None = None,
    ) -> None:
        """`max_body_memory_bytes`: of the bodies of all calls together. `visitors`: who may ask without a key."""
        self.bodies = Bodies(max_body_memory_bytes)
        self.max_request_size_bytes = max_request_size_bytes
        self.keyring = keyring
        self.open_scopes = open_scopes | {Scope.OPEN}
        self.limits = limits or RateLimits()
        self._visitors = visitors or Visitors()

    def needs_key(self, scope: Scope) -> bool:
        """True if calls of that scope have to carry a key."""
        return self.keyring is not None and scope not in self.open_scopes

    def check(self, exchange: Exchange, scope: Scope) -> CheckBody | None:
        """Let the call pass, or all of it but its body, which the result is for.

        Raises: Unauthorized, Forbidden, RateLimited.
        """
        if self.keyring is None or scope in self.open_scopes:
            if (
                scope is not Scope.OPEN
            ):  # health checks and descriptions do nothing, and browsers hide them by themselves
                self._visitors.check(exchange.headers)
            return None
        caller = find_caller(self.keyring, exchange.properties)
        if caller is not None:
            self._admit(exchange, caller, scope)
            return None
        if self.keyring.pairs and is_signed(exchange.headers.get("authorization", "")):
            signed = read_signature(RawHead(exchange.method, *exchange.raw_target), self.keyring.pairs)
            return partial(self._check_body, exchange, scope, signed)
        how = " or sign it for AWS" if self.keyring.pairs else ""
        raise Unauthorized(
            f"The API key is missing or wrong: send it as `Authorization: Bearer`, `api-key` or `x-api-key`{how}"
        )

    async def _check_body(self, exchange: Exchange, scope: Scope, signed: SignedRequest, body: bytes) -> None:
        is_large = (
            len(body) > MAX_INLINE_BYTES
        )  # hashing 64 MB takes a tenth of a second, and others are served meanwhile
        caller = await asyncio.to_thread(signed.check, body) if is_large else signed.check(body)
        self._admit(exchange, caller, scope)

    def _admit(self, exchange: Exchange, caller: Caller, scope: Scope) -> None:
        exchange.caller, exchange.standing = caller.name, caller.standing
        if scope not in caller.scopes:
            raise Forbidden(
                f"The key {caller.name} does not open this: it needs the scope {scope}, "
                f"and has {', '.join(sorted(caller.scopes))}"
            )
        if caller.limits:
            try:
                told = self.limits.admit(caller)
            except RateLimited:
                exchange.also_sent = {**exchange.also_sent, **self.limits.headers(caller)}
                raise
            exchange.also_sent = {**exchange.also_sent, **told}


def find_caller(keyring: Keyring, headers: Mapping[str, str]) -> Caller | None:
    """The caller whose key the call carries, in a header field of any of the APIs; one right key among several is enough."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    named = [headers.get(name, "") for name in KEY_HEADERS]
    for text in [*named, token] if scheme.lower() == "bearer" else named:
        if text and (caller := keyring.find(text.strip().encode("latin-1", "replace"))) is not None:
            return caller
    return None
