"""Finds and reads config.properties. The working directory, where LMI also looks, should not decide what is served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dragoman.config.sources import Given, read_properties_file

SERVER_FILE_NAME = "config.properties"
HOME_VARIABLE = "MODEL_SERVER_HOME"
_PLACES = (f"conf/{SERVER_FILE_NAME}", SERVER_FILE_NAME)


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
