"""Decides which pages of other origins may read answers. `gate` refuses calls. Source: Fetch Standard, "CORS protocol"."""

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
"""Fields that pages may read beside those that APIs declare; a browser hides all others."""


@dataclass(frozen=True, slots=True)
class CorsRules:
    """The operator's rules. `origins`: separated by commas, or `*`; "" = none.

    `methods`, `headers`: that pages may send; "" = those of the route, and those that the page asks for.
    `allows_credentials`: browsers may add cookies and certificates; not with `*`.
    """

    origins: str = ""
    methods: str = ""
    headers: str = ""
    allows_credentials: bool = False


class Cors:
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
        """The fields for an answer to a page of that origin; None = to no page."""
        if ANY in self._origins:
            return self._of_any
        if origin is None or not self.allows(origin):
            return _VARY
        return {"access-control-allow-origin": origin, **self._static, **_VARY}

    def preflight(self, headers: Mapping[str, str], allow: str) -> Mapping[str, str]:
        """The further fields for a route with the methods `allow`; {} if this is not a preflight, or is forbidden."""
        is_allowed = "access-control-allow-origin" in self.headers(headers.get("origin"))
        if not is_allowed or "access-control-request-method" not in headers:
            return {}
        return {
            "access-control-allow-methods": self._rules.methods or allow,
            "access-control-allow-headers": self._rules.headers or headers.get("access-control-request-headers", ""),
            "access-control-max-age": str(PREFLIGHT_AGE_S),
        }


_VARY = {"vary": "origin"}
"""Caches must not reuse answers for other origins."""
