"""Key pairs of AWS clients: a file in the form of AWS's own shared credentials, or a text. Read at the start and at changes.

    [alice]
    aws_access_key_id = ALICE
    aws_secret_access_key = ...
    aws_session_token = ...            only where the client sends one
    scopes = inference

Source: AWS SDKs and Tools Reference, "Shared config and credentials files".
"""

from __future__ import annotations

import configparser
import re
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.server.security.callers import Caller, KeysError, Limits, read_caller, unreadable

_ID, _SECRET, _TOKEN = "aws_access_key_id", "aws_secret_access_key", "aws_session_token"
_ID_FORM = re.compile(r"\w{1,128}", re.ASCII)


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
