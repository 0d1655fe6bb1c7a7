"""The sources of option values: the environment (read only here), properties files, and the place of config.properties.

The working directory, where LMI also looks for that, should not decide what is served. Source of the naming rules: the LMI
configuration reference.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROPERTIES_NAME = "serving.properties"
SERVER_FILE_NAME = "config.properties"
HOME_VARIABLE = "MODEL_SERVER_HOME"
_PLACES = (f"conf/{SERVER_FILE_NAME}", SERVER_FILE_NAME)

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# An escape, or the first unescaped "=", ":" or blank, which ends the key.
_KEY = re.compile(r"(?:\\.|[^\\=:\s])*", re.DOTALL)
_SEPARATOR = re.compile(r"\s*[=:]?\s*")


@dataclass(frozen=True, slots=True)
class Given:
    """`name`: as written ("--port", "OPTION_DTYPE"). `key`: the serving.properties key if the name follows a rule, else
    `name`.

    `source`: the file and line, "environment", or "command line".
    """

    name: str
    key: str
    text: str
    source: str


def environment() -> Mapping[str, str]:
    return dict(os.environ)


def read_environment(environ: Mapping[str, str]) -> list[Given]:
    return [
        Given(name, _key_of_variable(name), text, "environment")
        for name, text in sorted(environ.items())
        if text.strip()
    ]


def _key_of_variable(name: str) -> str:
    """OPTION_MODEL_ID -> option.model_id, OPTION_entryPoint -> option.entryPoint, SERVING_PORT -> port, X -> X."""
    prefix, separator, rest = name.partition("_")
    if prefix not in ("OPTION", "SERVING") or not separator or not rest:
        return name
    if re.fullmatch(r"[A-Z_0-9]+", rest):
        rest = rest.lower()
    return rest if prefix == "SERVING" else f"option.{rest}"


def cache_home(environ: Mapping[str, str]) -> Path:
    """The user's cache directory. Source: XDG base directory specification."""
    folder = environ.get("XDG_CACHE_HOME", "")
    return Path(folder) if Path(folder).is_absolute() else Path.home() / ".cache"


def read_properties_file(path: Path) -> list[Given]:
    """The values, without empty ones. Raises: OSError, UnicodeDecodeError if the file is not UTF-8."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        Given(key, key, text, f"{path} line {number}")
        for number, key, text in _entries(_logical_lines(lines))
        if text.strip()
    ]


def _logical_lines(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Lines without comments, with continuation lines joined; the number is that of the first physical line."""
    pending, first = "", 0
    for number, line in enumerate(lines, start=1):
        text = line.lstrip()
        if not pending and (not text or text[0] in "#!"):
            continue
        first = first if pending else number
        pending += text
        if (len(pending) - len(pending.rstrip("\\"))) % 2:  # an odd number of backslashes continues the line
            pending = pending[:-1]
            continue
        yield first, pending
        pending = ""
    if pending:
        yield first, pending


def _entries(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    for number, line in lines:
        key = _KEY.match(line)
        assert key is not None  # the pattern matches the empty text too
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None
        yield number, _unescape(key.group()), _unescape(line[separator.end() :]).rstrip()


def _unescape(text: str) -> str:
    r"""`\=` -> `=`, `\n` -> newline, `\u0041` -> `A`, as in Java's Properties format."""

    def replace(match: re.Match[str]) -> str:
        code, char = match.groups()
        return chr(int(code, 16)) if code else _ESCAPES.get(char, char)

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", replace, text)


@dataclass(frozen=True, slots=True)
class ServerFile:
    """One config.properties; `path` None = there is none. Relative paths in it count from `home`."""

    path: Path | None
    home: Path
    givens: tuple[Given, ...] = ()


class ServerFileError(Exception):
    """config.properties cannot be used; one line with the path and the reason."""


def read_server_file(named: Path | None, where: str, environ: Mapping[str, str]) -> ServerFile:
    """The file that the operator `named`, else the one in MODEL_SERVER_HOME, if there is one. Raises: ServerFileError.

    `where` cites the option that named it, for messages.
    """
    given_home = environ.get(HOME_VARIABLE, "").strip()
    home = Path(given_home)  # "" is the working directory
    if given_home and not home.is_dir():
        raise ServerFileError(f"{HOME_VARIABLE}={given_home} (environment): must be a directory on this machine")
    path = named
    if path is None and given_home:
        path = next((home / place for place in _PLACES if (home / place).is_file()), None)
        where = f"{path} (environment: {HOME_VARIABLE})"
    if path is None:
        return ServerFile(None, home)
    try:
        return ServerFile(path, home, tuple(read_properties_file(path)))
    except (OSError, UnicodeDecodeError) as error:
        raise ServerFileError(f"{where}: must be a readable UTF-8 file: {error}") from error
