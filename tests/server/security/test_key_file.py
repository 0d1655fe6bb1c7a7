"""Files of keys: what may stand there, and that mistakes are told without telling a key."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from dragoman.server.security.callers import ALL_SCOPES, KeysError, Limits, read_scopes
from dragoman.server.security.keyring import Keyring, KeySources
from dragoman.types import Standing
from tests.support.tables import table


def keyring(path: Path, text: str, usual: Limits | None = None) -> Keyring:
    path.write_text(text, encoding="utf-8")
    made = KeySources(key_file=path, usual=usual or Limits()).read()
    assert made is not None
    return made


def mistake(path: Path, text: str) -> str:
    with pytest.raises(KeysError) as caught:
        keyring(path, text)
    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def test_a_bare_key_opens_everything(path: Path) -> None:
    caller = keyring(path, "# mine\n\n  s3cret  \n").find(b"s3cret")
    assert caller is not None
    assert (caller.name, caller.scopes, caller.limits) == ("key-3", ALL_SCOPES, Limits())


def test_a_line_names_the_key_and_says_what_it_opens(path: Path) -> None:
    text = (
        "alice: s3cret\nbob: s3cret:2   scopes=inference,metrics requests-per-minute=60 tokens-per-minute=9\nschlüssel"
    )
    found = keyring(path, text, Limits(5, None))
    alice, bob, last = (found.find(key.encode()) for key in ("s3cret", "s3cret:2", "schlüssel"))
    assert alice is not None
    assert bob is not None
    assert last is not None
    assert (alice.name, alice.scopes, alice.limits) == ("alice", ALL_SCOPES, Limits(5, None))
    assert (bob.name, bob.scopes, bob.limits) == ("bob", read_scopes("inference,metrics"), Limits(60, 9))
    assert last.name == "key-3"


def test_a_line_says_how_a_keys_requests_stand_beside_others(path: Path) -> None:
    found = keyring(path, "alice: a priority=-5 share=20\nbob: b background=yes\ncarol: c")
    standings = [caller.standing for key in (b"a", b"b", b"c") if (caller := found.find(key)) is not None]
    assert standings == [Standing(5, 20), Standing(is_background=True), Standing()]


def test_a_bare_key_may_have_a_colon(path: Path) -> None:
    assert keyring(path, "a:b").find(b"a:b") is not None


def test_the_file_may_hold_hashes_in_the_place_of_keys(path: Path) -> None:
    found = keyring(path, f"alice: sha256:{hashlib.sha256(b's3cret').hexdigest()}")
    caller = found.find(b"s3cret")
    assert caller is not None
    assert caller.name == "alice"
    assert found.find(hashlib.sha256(b"s3cret").hexdigest().encode()) is None


def test_a_caller_may_have_two_keys_while_one_is_replaced(path: Path) -> None:
    found = keyring(path, "alice: old\nalice: new")
    assert found.find(b"old") == found.find(b"new") is not None


@table("key", [b"", b"S3cret", b"s3cre", b"s3cret ", b"alice", b"alice: s3cret", b"\xff"])
def test_nothing_else_is_a_key(path: Path, key: bytes) -> None:
    assert keyring(path, "alice: s3cret").find(key) is None


@table(
    ("line", "told"),
    [
        ("s3cret and more", "line 1: must be a key, or `NAME: KEY`"),
        ("alice: s3cret inference", "line 1: what follows a key must be NAME=VALUE"),
        ("alice: s3cret scopes=all", "'all' is not a scope; allowed: inference, metrics, management, debug"),
        ("alice: s3cret scopes=open", "'open' is not a scope"),
        ("alice: s3cret scope=inference", "'scope' is not a property of a key"),
        ("alice: s3cret tokens-per-minute=0", "tokens-per-minute must be an integer from 1 to 999999999, got '0'"),
        ("alice: s3cret priority=low", "priority must be an integer from -2147483647 to 2147483647, got 'low'"),
        ("alice: s3cret share=0", "share must be an integer from 1 to 1000, got '0'"),
        ("alice: s3cret share=1001", "share must be an integer from 1 to 1000, got '1001'"),
        ("alice: s3cret background=maybe", "background must be yes or no, got 'maybe'"),
        ("älice: s3cret", "a key's name must be 1 to 64 letters"),
        ("alice: sha256:s3cret", "sha256: must be followed by 64 hexadecimal digits"),
        ("alice: s3cret\nbob: s3cret", "alice and bob have the same key"),
        ("alice: s3cret\nalice: s3cret scopes=debug", "alice and alice have the same key"),
        ("# only this", "must hold at least one key"),
    ],
)
def test_a_mistake_is_told_in_a_line_without_the_key(path: Path, line: str, told: str) -> None:
    assert told in mistake(path, line)


def test_a_file_that_cannot_be_read_is_told(path: Path) -> None:
    with pytest.raises(KeysError, match="must be a readable UTF-8 file"):
        KeySources(key_file=path).read()
    path.write_bytes(b"s3cret\xff")
    with pytest.raises(KeysError, match="must be a readable UTF-8 file") as caught:
        KeySources(key_file=path).read()
    assert "s3cret" not in str(caught.value)


@table(
    ("text", "told"),
    [
        ("", "at least one key pair"),
        ("aws_secret_access_key = s3cret", "form of AWS's credentials file"),
        ("[a]\naws_access_key_id = A\naws_secret_access_key", "form of AWS's credentials file"),
        ("[a]\naws_access_key_id = A", "aws_secret_access_key must not be empty"),
        ("[a]\naws_access_key_id = A B\naws_secret_access_key = s3cret", "aws_access_key_id must be letters"),
        ("[a b]\naws_access_key_id = A\naws_secret_access_key = s3cret", "a key's name must be"),
        (
            "[a]\naws_access_key_id = A\naws_secret_access_key = s3cret\nregion = x",
            "'region' is not a property of a key",
        ),
        (
            "[a]\naws_access_key_id = A\naws_secret_access_key = s3cret\n[b]\naws_access_key_id = A\n"
            "aws_secret_access_key = other",
            "access key A occurs twice",
        ),
    ],
)
def test_a_mistake_in_a_credentials_file_is_told_without_the_secret(path: Path, text: str, told: str) -> None:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(KeysError) as caught:
        KeySources(aws_file=path).read()
    assert told in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_no_key_is_kept_as_it_is(path: Path) -> None:
    """What the ring holds, and what it shows of itself, has no key in it: of key pairs the secret alone, which signs."""
    found = keyring(path, "alice: s3cret-of-alice")
    held = repr([vars(found), found])
    assert "s3cret-of-alice" not in held
    assert hashlib.sha256(b"s3cret-of-alice").hexdigest() not in held
    pairs = KeySources(aws="ID:s3cret-of-bob:token-of-bob")
    made = pairs.read()
    assert made is not None
    for shown in (repr(pairs), repr(made.pairs)):
        assert "s3cret-of-bob" not in shown
        assert "token-of-bob" not in shown
