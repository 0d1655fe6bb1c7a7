"""All valid keys at one moment, and the files of keys and of AWS's key pairs. Made at the start and when a file has changed.

Sources: AWS SDKs and Tools Reference, "Shared config and credentials files".
"""

from __future__ import annotations

import configparser
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.server.security.callers import UNLIMITED, Caller, KeysError, Limits, read_caller, unreadable

_ID, _SECRET, _TOKEN = "aws_access_key_id", "aws_secret_access_key", "aws_session_token"
_ID_FORM = re.compile(r"\w{1,128}", re.ASCII)
ENVIRONMENT = "environment"  # what the key is called that the operator gave without a file
HASHED = "sha256:"

_LINE = re.compile(r"(?P<name>[^\s:]+):\s+(?P<key>\S+)(?P<facts>(\s+\S+)*)")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key pair. The secret is kept in clear: checking signatures needs it. `session_token` "" = none."""

    access_key_id: str
    secret: str = field(repr=False)
    caller: Caller
    session_token: str = field(default="", repr=False)


def read_credentials_text(text: str, name: str, usual: Limits) -> KeyPair:
    access_key_id, _, rest = text.partition(":")
    secret, _, session_token = rest.partition(":")
    try:
        return _pair(access_key_id, secret, session_token, Caller(name, limits=usual))
    except KeysError as error:
        form = "ID:SECRET or ID:SECRET:SESSION_TOKEN, the ID of letters, digits and _"
        raise KeysError(f"aws_key_pair: must be {form}") from error


def read_credentials_file(path: Path, usual: Limits) -> list[KeyPair]:
    """The key pairs of the file; a section's name is its caller's name. Raises: KeysError."""
    parser = configparser.RawConfigParser(default_section="", inline_comment_prefixes=None)
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
    except configparser.Error as error:  # its text would show the line, secret and all
        raise KeysError(f"{path}: must have the form of AWS's credentials file: {type(error).__name__}") from None
    if not parser.sections():
        raise KeysError(f"{path}: must hold at least one key pair")
    return [_read_section(path, name, dict(parser[name]), usual) for name in parser.sections()]


def _read_section(path: Path, name: str, facts: dict[str, str], usual: Limits) -> KeyPair:
    access_key_id, secret, session_token = (facts.pop(key, "") for key in (_ID, _SECRET, _TOKEN))
    try:
        caller = read_caller(name, {key.replace("_", "-"): value for key, value in facts.items()}, usual)
        return _pair(access_key_id, secret, session_token, caller)
    except KeysError as error:
        raise KeysError(f"{path} [{name}]: {error}") from error


def _pair(access_key_id: str, secret: str, session_token: str, caller: Caller) -> KeyPair:
    if not _ID_FORM.fullmatch(access_key_id) or not secret:
        raise KeysError(f"{_ID} must be letters, digits and _, and {_SECRET} must not be empty")
    return KeyPair(access_key_id, secret, caller, session_token)


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


class Keyring:
    """Callers by the hashes of their keys, and key pairs of AWS. Raises: KeysError if two callers share a key."""

    def __init__(self, keys: Iterable[NamedKey] = (), pairs: Iterable[KeyPair] = ()) -> None:
        # With a secret in the hash nobody can choose a key whose hash resembles another one's. So the time of a look-up
        # tells nothing.
        self._pepper = os.urandom(32)
        self._callers: dict[bytes, Caller] = {}
        for key in keys:
            known = self._callers.setdefault(self._hash(key.sha256), key.caller)
            if known != key.caller:
                raise KeysError(f"{known.name} and {key.caller.name} have the same key")
        self.pairs: dict[str, KeyPair] = {}
        for pair in pairs:
            if self.pairs.setdefault(pair.access_key_id, pair) != pair:
                raise KeysError(f"access key {pair.access_key_id} occurs twice")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(
            sorted({caller.name for caller in (*self._callers.values(), *(x.caller for x in self.pairs.values()))})
        )

    def find(self, key: bytes) -> Caller | None:
        return self._callers.get(self._hash(hashlib.sha256(key).digest()))

    def _hash(self, sha256: bytes) -> bytes:
        return hashlib.blake2b(sha256, key=self._pepper, digest_size=32).digest()


@dataclass(frozen=True, slots=True)
class KeySources:
    """The sources of keys. `aws`: a key pair as a text, "" = none. `usual`: limits of callers whose key has none."""

    key_file: Path | None = None
    aws: str = field(default="", repr=False)
    aws_file: Path | None = None
    usual: Limits = UNLIMITED

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.key_file, self.aws_file) if path is not None)

    def read(self, bare: Iterable[str] = ()) -> Keyring | None:
        """All keys, read from the files; None = calls need no key. `bare`: open everything. Raises: KeysError."""
        keys = [NamedKey(hashed(key), Caller(ENVIRONMENT, limits=self.usual)) for key in bare]
        if not (keys or self.aws or self.files):
            return None
        pairs = [] if not self.aws else [read_credentials_text(self.aws, ENVIRONMENT, self.usual)]
        if self.key_file is not None:
            keys += read_key_file(self.key_file, self.usual)
        if self.aws_file is not None:
            pairs += read_credentials_file(self.aws_file, self.usual)
        return Keyring(keys, pairs)
