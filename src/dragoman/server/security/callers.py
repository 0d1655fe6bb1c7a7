"""The holder of a key: its name, its scopes, its limits.

Does: hold that, and read the parts that all files of keys have in common. Does not: know keys. Made when keys are read, at
the start and when their files change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dragoman.server.security.scopes import ALL_SCOPES, Scope, read_scopes
from dragoman.types import USUAL_STANDING, Standing

NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
NAME_FORM = "1 to 64 letters, digits and . _ @ -"

SCOPES, REQUESTS, TOKENS = "scopes", "requests-per-minute", "tokens-per-minute"
PRIORITY, SHARE, BACKGROUND = "priority", "share", "background"
FACTS = (SCOPES, REQUESTS, TOKENS, PRIORITY, SHARE, BACKGROUND)
"""What may be said of a key beside its name."""

_MAX_SHARE = 1000
_MAX_PRIORITY = 2**31 - 1


class KeysError(Exception):
    """Keys cannot be used as they are written; one line that says where and why, and never the key itself."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a caller. None = no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __bool__(self) -> bool:
        return self.requests_per_minute is not None or self.tokens_per_minute is not None


UNLIMITED = Limits()


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of a key. `name` "" = no keys are needed."""

    name: str
    scopes: frozenset[Scope] = ALL_SCOPES
    limits: Limits = UNLIMITED
    standing: Standing = USUAL_STANDING


def unreadable(path: Path, error: OSError | UnicodeDecodeError) -> KeysError:
    """The error for a file of keys that cannot be read; it cites nothing of the content."""
    why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
    return KeysError(f"{path}: must be a readable UTF-8 file: {why}")


def read_caller(name: str, facts: Mapping[str, str], usual: Limits) -> Caller:
    """The caller of that name. `facts`: the settings of its key; `usual`: the limits of keys without settings.

    Raises: KeysError.
    """
    if not NAME.fullmatch(name):
        raise KeysError(f"a key's name must be {NAME_FORM}")
    if unknown := set(facts) - set(FACTS):
        raise KeysError(f"{sorted(unknown)[0][:40]!r} is not a property of a key; allowed: {', '.join(FACTS)}")
    try:
        scopes = read_scopes(facts[SCOPES]) if SCOPES in facts else ALL_SCOPES
    except ValueError as error:
        raise KeysError(str(error)) from error
    limits = Limits(_limit(REQUESTS, facts, usual.requests_per_minute), _limit(TOKENS, facts, usual.tokens_per_minute))
    return Caller(name, scopes, limits, _standing(facts))


def _standing(facts: Mapping[str, str]) -> Standing:
    """The standing of the caller's requests among others; priorities count as in requests, the smallest first."""
    priority = None
    if PRIORITY in facts:
        if not re.fullmatch(r"-?[0-9]{1,10}", facts[PRIORITY]) or abs(int(facts[PRIORITY])) > _MAX_PRIORITY:
            raise KeysError(
                f"{PRIORITY} must be an integer from -{_MAX_PRIORITY} to {_MAX_PRIORITY}, got {facts[PRIORITY][:40]!r}"
            )
        priority = -int(facts[PRIORITY])
    share = facts.get(SHARE, "1")
    if not re.fullmatch(r"[1-9][0-9]{0,3}", share) or int(share) > _MAX_SHARE:
        raise KeysError(f"{SHARE} must be an integer from 1 to {_MAX_SHARE}, got {share[:40]!r}")
    background = facts.get(BACKGROUND, "no")
    if background not in ("yes", "no"):
        raise KeysError(f"{BACKGROUND} must be yes or no, got {background[:40]!r}")
    return Standing(priority, int(share), background == "yes")


def _limit(name: str, facts: Mapping[str, str], usual: int | None) -> int | None:
    if name not in facts:
        return usual
    if not re.fullmatch(r"[1-9][0-9]{0,8}", facts[name]):
        raise KeysError(f"{name} must be an integer from 1 to 999999999, got {facts[name][:40]!r}")
    return int(facts[name])
