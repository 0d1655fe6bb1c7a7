"""Reads the file of API keys: one on each line, bare or with a name and settings. Called at the start and at changes.

# comments and empty lines do not count
f3c9...                                    a bare key opens everything; it is called key-LINE
alice: f3c9...                             a key with a name
bob: sha256:9b74... scopes=inference,metrics requests-per-minute=60 tokens-per-minute=20000
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dragoman.server.security.callers import Caller, KeysError, Limits, read_caller, unreadable

HASHED = "sha256:"

_LINE = re.compile(r"(?P<name>[^\s:]+):\s+(?P<key>\S+)(?P<facts>(\s+\S+)*)")


@dataclass(frozen=True, slots=True)
class NamedKey:
    """A key and its caller. `sha256`: of the key as UTF-8; the key itself is not kept."""

    sha256: bytes
    caller: Caller


def hashed(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def read_key_file(path: Path, usual: Limits) -> list[NamedKey]:
    """The keys of the file. Raises: KeysError naming file and line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
    keys = list(_keys(path, lines, usual))
    if not keys:
        raise KeysError(f"{path}: must hold at least one key, one per line")
    return keys


def _keys(path: Path, lines: list[str], usual: Limits) -> Iterator[NamedKey]:
    for number, text in enumerate(lines, 1):
        line = text.strip()
        if not line or line.startswith("#"):
            continue
        try:
            yield _read_line(line, f"key-{number}", usual)
        except KeysError as error:
            raise KeysError(f"{path} line {number}: {error}") from error


def _read_line(line: str, usual_name: str, usual: Limits) -> NamedKey:
    match = _LINE.fullmatch(line)
    if match is None:
        if len(line.split()) > 1:
            raise KeysError("must be a key, or `NAME: KEY` with its scopes")
        return NamedKey(_kept(line), Caller(usual_name, limits=usual))
    pairs = [word.partition("=") for word in match["facts"].split()]
    if any(not equals for _, equals, _ in pairs):
        raise KeysError("what follows a key must be NAME=VALUE")
    return NamedKey(_kept(match["key"]), read_caller(match["name"], {name: value for name, _, value in pairs}, usual))


def _kept(key: str) -> bytes:
    if not key.startswith(HASHED):
        return hashed(key)
    if not re.fullmatch(r"[0-9a-fA-F]{64}", key.removeprefix(HASHED)):
        raise KeysError(f"{HASHED} must be followed by 64 hexadecimal digits")
    return bytes.fromhex(key.removeprefix(HASHED))
