"""The scopes of keys: each operation of the client APIs has one, each key any number of them. `gate` checks them."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    OPEN = "open"  # needs no key: health checks, and what the server says of itself
    INFERENCE = "inference"  # generates, counts tokens, lists models
    METRICS = "metrics"
    MANAGEMENT = "management"  # loads, replaces and unloads models and adapters, downloads models
    DEBUG = "debug"  # sees and ends other callers' calls


KEY_SCOPES = tuple(scope for scope in Scope if scope is not Scope.OPEN)
ALL_SCOPES = frozenset(KEY_SCOPES)


def read_scopes(text: str) -> frozenset[Scope]:
    """The scopes in `text`, separated by commas. Raises: ValueError."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in KEY_SCOPES:
            raise ValueError(f"{name[:40]!r} is not a scope; allowed: {', '.join(KEY_SCOPES)}")
    return frozenset(Scope(name) for name in names)
