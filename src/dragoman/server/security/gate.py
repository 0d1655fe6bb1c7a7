"""Checks each call: whose key it carries, whether that key allows it, and how much the caller may still ask for.

A browser also sends requests of any page to this machine. It hides the answers of other origins, but the requests take
effect. A page whose own name leads to 127.0.0.1 even reads the answers (DNS rebinding). Without a key, the header
fields of browsers tell their requests from those of other programs. Used on the event loop; `keyring` is replaced when
keys change.

Limits are buckets that fill steadily and hold a minute's worth. Tokens are taken when a call has ended, below zero if
necessary, so several calls at once may exceed the rate for a while. Sources: Fetch Metadata Request Headers (W3C),
"Sec-Fetch-Site"; Fetch Standard, "Origin"; OpenAI API reference, headers of rate limits.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache, partial
from ipaddress import ip_address

from dragoman.errors import Forbidden, RateLimited, Unauthorized
from dragoman.server.api import MAX_INLINE_BYTES
from dragoman.server.http.exchange import DEFAULT_BODY_MEMORY_BYTES, Bodies, Exchange
from dragoman.server.security.callers import Caller, Limits, Scope
from dragoman.server.security.cors import Cors
from dragoman.server.security.keyring import Keyring
from dragoman.server.security.sigv4 import RawHead, SignedRequest, is_signed, read_signature

KEY_HEADERS = ("api-key", "x-api-key")  # beside `Authorization: Bearer`: those of Azure's and of Anthropic's clients

ANY = "*"
MAX_SHOWN = 80  # characters of a host or origin that an error repeats

_OTHERS = frozenset({"cross-site", "same-site"})  # of Sec-Fetch-Site: the page has another origin

CheckBody = Callable[[bytes], Awaitable[None]]
"""Checks the signed body of a call. Raises: as `Gate.check`."""
PERIOD_S = 60.0


class Gate:
    """Checks calls. `keyring` None = calls need no key. `open_scopes`: scopes that need no key even then."""

    def __init__(
        self,
        max_request_size_bytes: int,
        keyring: Keyring | None = None,
        open_scopes: frozenset[Scope] = frozenset(),
        max_body_memory_bytes: int = DEFAULT_BODY_MEMORY_BYTES,
        visitors: Visitors | None = None,
    ) -> None:
        self.bodies = Bodies(max_body_memory_bytes)
        self.max_request_size_bytes = max_request_size_bytes
        self.keyring = keyring
        self.open_scopes = open_scopes | {Scope.OPEN}
        self.limits = RateLimits()
        self.visitors = visitors or Visitors()

    def needs_key(self, scope: Scope) -> bool:
        return self.keyring is not None and scope not in self.open_scopes

    def check(self, exchange: Exchange, scope: Scope) -> CheckBody | None:
        """Check a call, and note its caller on the exchange. Returns a check for its body, if that is signed.

        Raises: Unauthorized, Forbidden, RateLimited.
        """
        if self.keyring is None or scope in self.open_scopes:
            # Health checks and descriptions do nothing, and browsers hide them by themselves.
            if scope is not Scope.OPEN:
                self.visitors.check(exchange.headers)
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
        # Hashing 64 MB takes a tenth of a second, and others are served meanwhile.
        is_large = len(body) > MAX_INLINE_BYTES
        caller = await asyncio.to_thread(signed.check, body) if is_large else signed.check(body)
        self._admit(exchange, caller, scope)

    def _admit(self, exchange: Exchange, caller: Caller, scope: Scope) -> None:
        exchange.caller, exchange.standing = caller.name, caller.standing
        if scope not in caller.scopes:
            raise Forbidden(
                f"The key {caller.name} may not do this: it needs the scope {scope}, "
                f"and has {', '.join(sorted(caller.scopes))}"
            )
        if caller.limits:
            try:
                headers = self.limits.admit(caller)
            except RateLimited:
                exchange.also_sent = {**exchange.also_sent, **self.limits.headers(caller)}
                raise
            exchange.also_sent = {**exchange.also_sent, **headers}


def find_caller(keyring: Keyring, headers: Mapping[str, str]) -> Caller | None:
    """The caller whose key is in a header field of any API."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    named = [headers.get(name, "") for name in KEY_HEADERS]
    for text in [*named, token] if scheme.lower() == "bearer" else named:
        if text and (caller := keyring.find(text.strip().encode("latin-1", "replace"))) is not None:
            return caller
    return None


# --- browsers ---------------------------------------------------------------------------------------------------------


class AllowedHosts:
    """The names of this server, beside those of this machine. `*` = any."""

    def __init__(self, names: Sequence[str] = (ANY,)) -> None:
        """`names`: hosts; `*.DOMAIN` = all names below that domain; with a port if only that port is meant."""
        self._names = frozenset(names)
        self._allows = lru_cache(maxsize=256)(self._is_allowed)

    def check(self, headers: Mapping[str, str]) -> None:
        host = headers.get("host")
        if host is None or ANY in self._names or self._allows(host):
            return
        raise Forbidden(
            f"Host {host[:MAX_SHOWN]} is not served here: allowed are localhost, this machine's addresses and the "
            "names in --allowed-hosts"
        )

    def names(self, host: str) -> bool:
        """True if the operator has listed this host."""
        return host != "" and (host in self._names or _without_port(host) in self._names or self._is_below(host))

    def _is_allowed(self, host: str) -> bool:
        return _is_this_machine(_without_port(host.lower())) or self.names(host.lower())

    def _is_below(self, host: str) -> bool:
        whole, bare = host, _without_port(host)
        return any(
            name.startswith("*.") and (whole.endswith(name[1:]) or bare.endswith(name[1:])) for name in self._names
        )


class Visitors:
    """Checks a browser's requests. `hosts`: whose pages count as the server's own."""

    def __init__(self, cors: Cors | None = None, hosts: AllowedHosts | None = None) -> None:
        self.cors = cors
        self.hosts = hosts or AllowedHosts()

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises: Forbidden for a browser's request from a page of another origin, unless CORS allows that page."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if (origin is None and site is None) or not self._is_foreign(origin, site, headers):
            return
        if self.cors is not None and self.cors.allows(origin):
            return
        page = "a page of another site" if origin in (None, "null") else f"a page of {origin[:MAX_SHOWN]}"
        raise Forbidden(
            f"a browser asks on behalf of {page}, which is not served where no key is needed: --cors-allowed-origin names "
            "the origins that may"
        )

    def _is_foreign(self, origin: str | None, site: str | None, headers: Mapping[str, str]) -> bool:
        if site is not None:  # the browser has compared by itself, also where a proxy has changed the host
            return site.strip().lower() in _OTHERS
        host = (origin or "").partition("://")[2].lower()
        ours = (headers.get("host", "").lower(), headers.get("x-forwarded-host", "").lower())
        return host == "" or (host not in ours and not self.hosts.names(host))


def _is_this_machine(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _without_port(host: str) -> str:
    """The host without `:PORT`, and without the dot that names may end with."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() and not name.endswith(":") else host).rstrip(".")


class Bucket:
    """The bucket of one limit, full at first. `size`: the amount added in a minute."""

    def __init__(self, size: int, now_s: float) -> None:
        self.size = size
        self._level = float(size)
        self._at_s = now_s

    def left(self, now_s: float) -> float:
        """The amount that may be taken now; negative = a debt."""
        self._level = min(self.size, self._level + max(0.0, now_s - self._at_s) * self.size / PERIOD_S)
        self._at_s = now_s
        return self._level

    def resize(self, size: int, now_s: float) -> None:
        """Change the size, because the limit has changed or the keys of one name have two limits. Adds nothing."""
        self._level = min(self.left(now_s), float(size))
        self.size = size

    def take(self, amount: float) -> None:
        self._level -= amount

    def until_s(self, level: float, now_s: float) -> float:
        return max(0.0, level - self.left(now_s)) * PERIOD_S / self.size


class RateLimits:
    """The buckets of all callers with limits. `clock`: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], Bucket] = {}

    def admit(self, caller: Caller) -> Mapping[str, str]:
        """Take one request, and return the header fields that tell what is left. Raises: RateLimited."""
        now_s = self._clock()
        buckets = self._of(caller, now_s)
        for name, bucket in buckets.items():
            # of tokens only a debt counts: how many a call will need, nobody knows yet
            wait_s = bucket.until_s(1.0 if name == "requests" else 0.0, now_s)
            if wait_s > 0:
                raise RateLimited(
                    f"Rate limit reached for {caller.name}: {bucket.size} {name} per minute; "
                    f"try again in {math.ceil(wait_s)} s",
                    retry_after_s=math.ceil(wait_s),
                )
        if "requests" in buckets:
            buckets["requests"].take(1)
        return self.headers(caller)

    def spend(self, caller: str, num_tokens: int) -> None:
        if self._buckets and (bucket := self._buckets.get((caller, "tokens"))) is not None:
            bucket.left(self._clock())
            bucket.take(num_tokens)

    def headers(self, caller: Caller) -> Mapping[str, str]:
        now_s = self._clock()
        headers = {}
        for name, bucket in self._of(caller, now_s).items():
            headers[f"x-ratelimit-limit-{name}"] = str(bucket.size)
            headers[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(bucket.left(now_s))))
            headers[f"x-ratelimit-reset-{name}"] = f"{bucket.until_s(bucket.size, now_s):.3f}s"
        return headers

    def _of(self, caller: Caller, now_s: float) -> dict[str, Bucket]:
        found = {}
        for name, size in _sizes(caller.limits):
            bucket = self._buckets.get((caller.name, name))
            if bucket is None:
                bucket = self._buckets[caller.name, name] = Bucket(size, now_s)
            elif bucket.size != size:
                bucket.resize(size, now_s)
            found[name] = bucket
        return found


def _sizes(limits: Limits) -> list[tuple[str, int]]:
    both = (("requests", limits.requests_per_minute), ("tokens", limits.tokens_per_minute))
    return [(name, size) for name, size in both if size is not None]
