"""All valid keys at one moment. Made at the start, and again when a file of keys has changed; never changed itself."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.server.security.aws_credentials import KeyPair, read_credentials_file, read_credentials_text
from dragoman.server.security.callers import UNLIMITED, Caller, KeysError, Limits
from dragoman.server.security.key_file import NamedKey, hashed, read_key_file

ENVIRONMENT = "environment"  # what the key is called that the operator gave without a file


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
        return tuple(sorted({one.name for one in (*self._callers.values(), *(x.caller for x in self.pairs.values()))}))

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
