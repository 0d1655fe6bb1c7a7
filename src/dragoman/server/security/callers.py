"""The holders of keys: their scopes, limits and settings, which all files of keys write alike.

Each operation of the client APIs has one scope, each key any number of them; `gate` checks them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from dragoman.types import USUAL_STANDING, Standing


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


NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
NAME_FORM = "1 to 64 letters, digits and . _ @ -"

SCOPES, REQUESTS, TOKENS = "scopes", "requests-per-minute", "tokens-per-minute"
PRIORITY, SHARE, BACKGROUND = "priority", "share", "background"
FACTS = (SCOPES, REQUESTS, TOKENS, PRIORITY, SHARE, BACKGROUND)
_MAX_SHARE = 1000
_MAX_LIMIT = 999_999_999
_MAX_PRIORITY = 2**31 - 1


class KeysError(Exception):
    """Keys cannot be used as they are written. The message says where and why, and never contains a key."""


@dataclass(frozen=True, slots=True)
class Limits:
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __bool__(self) -> bool:
        return self.requests_per_minute is not None or self.tokens_per_minute is not None


UNLIMITED = Limits()


@dataclass(frozen=True, slots=True)
class Caller:
    name: str
    scopes: frozenset[Scope] = ALL_SCOPES
    limits: Limits = UNLIMITED
    standing: Standing = USUAL_STANDING


def unreadable(path: Path, error: OSError | UnicodeDecodeError) -> KeysError:
    """The error for a file of keys that cannot be read; quotes nothing of its content."""
    why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
    return KeysError(f"{path}: must be a readable UTF-8 file: {why}")


def read_caller(name: str, facts: Mapping[str, str], usual: Limits) -> Caller:
    """The caller. `facts`: the settings of its key; `usual`: limits for keys without them. Raises: KeysError."""
    if not NAME.fullmatch(name):
        raise KeysError(f"a key's name must be {NAME_FORM}")
    if unknown := set(facts) - set(FACTS):
        raise KeysError(f"{sorted(unknown)[0][:40]!r} is not a property of a key; allowed: {', '.join(FACTS)}")
    try:
        scopes = read_scopes(facts[SCOPES]) if SCOPES in facts else ALL_SCOPES
    except ValueError as error:
        raise KeysError(str(error)) from error
    requests = _integer(REQUESTS, facts, 1, _MAX_LIMIT, usual.requests_per_minute)
    tokens = _integer(TOKENS, facts, 1, _MAX_LIMIT, usual.tokens_per_minute)
    priority = _integer(PRIORITY, facts, -_MAX_PRIORITY, _MAX_PRIORITY, None)
    share = _integer(SHARE, facts, 1, _MAX_SHARE, None)
    background = facts.get(BACKGROUND, "no")
    if background not in ("yes", "no"):
        raise KeysError(f"{BACKGROUND} must be yes or no, got {background[:40]!r}")
    # Priorities count as in requests, the smallest first.
    standing = Standing(None if priority is None else -priority, share or 1, background == "yes")
    return Caller(name, scopes, Limits(requests, tokens), standing)


def _integer(name: str, facts: Mapping[str, str], low: int, high: int, usual: int | None) -> int | None:
    if name not in facts:
        return usual
    text = facts[name]
    if not re.fullmatch(r"-?[0-9]{1,10}", text) or not low <= int(text) <= high:
        raise KeysError(f"{name} must be an integer from {low} to {high}, got {text[:40]!r}")
    return int(text)
