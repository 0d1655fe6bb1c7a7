"""Decides which pages of other origins may read answers, and tells their browsers.

Does: the header fields of CORS, of every answer and of preflights. Does not: refuse calls: keys and `browsers`
refuse those that do harm without the answer being read. Made by the app, used on the event loop.
Source: Fetch Standard, "CORS protocol".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ANY = "*"
PREFLIGHT_AGE_S = 600

ALWAYS_EXPOSED = (
    "x-request-id",
    "retry-after",
    *(f"x-ratelimit-{fact}-{of}" for fact in ("limit", "remaining", "reset") for of in ("requests", "tokens")),
)
"""Fields of answers that pages may read beside those that APIs declare; a browser shows them no others."""


@dataclass(frozen=True, slots=True)
class CorsRules:
    """The rules of the operator. `origins`: separated by commas, or `*`; "" = no page of another origin reads anything.

    `methods`, `headers`: what pages may send; "" = what the route answers to, and what the page asks for.
    `allows_credentials`: browsers may add cookies and certificates of their own; not with `*`.
    """

    origins: str = ""
    methods: str = ""
    headers: str = ""
    allows_credentials: bool = False


NO_PAGES = CorsRules()
"""Only pages of the server itself read answers."""


class Cors:
    """The rules, ready to be asked."""

    def __init__(self, rules: CorsRules, declared: Iterable[str] = ()) -> None:
        """`declared`: fields of answers that the APIs describe."""
        self._rules = rules
        self._origins = frozenset(origin.strip() for origin in rules.origins.split(","))
        self._static = {
            "access-control-allow-methods": rules.methods,
            "access-control-allow-headers": rules.headers,
            "access-control-allow-credentials": "true" if rules.allows_credentials else "",
            "access-control-expose-headers": ", ".join(
                dict.fromkeys((*ALWAYS_EXPOSED, *(name.lower() for name in declared)))
            ),
        }
        self._static = {name: value for name, value in self._static.items() if value}
        self._of_any = {"access-control-allow-origin": ANY, **self._static}

    def allows(self, origin: str | None) -> bool:
        """True if pages of that origin may read answers; None = the browser names no origin."""
        return ANY in self._origins or origin in self._origins

    def headers(self, origin: str | None) -> Mapping[str, str]:
        """The fields of an answer to a page of that origin, None = to no page."""
        if ANY in self._origins:
            return self._of_any
        if origin is None or not self.allows(origin):
            return _VARY
        return {"access-control-allow-origin": origin, **self._static, **_VARY}

    def preflight(self, headers: Mapping[str, str], allow: str) -> Mapping[str, str]:
        """The further fields of a preflight answer, for a route with the methods `allow`.

        Empty if this is not a preflight, or if the page may not read answers.
        """
        is_allowed = "access-control-allow-origin" in self.headers(headers.get("origin"))
        if not is_allowed or "access-control-request-method" not in headers:
            return {}
        return {
            "access-control-allow-methods": self._rules.methods or allow,
            "access-control-allow-headers": self._rules.headers or headers.get("access-control-request-headers", ""),
            "access-control-max-age": str(PREFLIGHT_AGE_S),
        }


_VARY = {"vary": "origin"}
"""Header of answers that depend on the origin: caches must not reuse them for other origins."""
