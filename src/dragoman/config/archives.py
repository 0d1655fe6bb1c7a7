"""Unpacks model archives, as LMI's model stores hold them, into a cache directory: only files and directories.

The libraries' own unpacking creates links, and chains of links can escape its checks.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, NamedTuple

from dragoman.files.ownership import own_directory
from dragoman.files.unfinished import scratch_directory

_PIECE = 1 << 20  # bytes that are copied at a time
SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip")

_UNREADABLE = (OSError, EOFError, RuntimeError, ValueError, zlib.error, tarfile.TarError, zipfile.BadZipFile)
# RuntimeError: a password or a compression method that zipfile lacks; ValueError: a member's name that cannot name a file


class ArchiveError(Exception):
    """The archive cannot be unpacked; one line with its path and the reason."""


def archive_stem(path: Path) -> str:
    suffix = next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), "")
    return path.name[: -len(suffix)] if suffix else ""


def is_archive(path: Path) -> bool:
    return bool(archive_stem(path)) and path.is_file()


def unpack(archive: Path, cache: Path) -> Path:
    """The directory below `cache` with the content of `archive`; its only directory if it has nothing else.

    An unchanged archive is not unpacked again. Raises: ArchiveError.
    """
    try:
        target = cache / f"{archive_stem(archive)}-{_version(archive)}"
        own_directory(cache)  # unpacked code may run
        if not target.is_dir():
            _unpack_into(target, archive)
        own_directory(target)
        children = list(target.iterdir())
    except _UNREADABLE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ArchiveError(f"{archive}: cannot be unpacked into {cache}: {reason}") from error
    return children[0] if len(children) == 1 and children[0].is_dir() else target


def _version(archive: Path) -> str:
    facts = archive.stat()
    text = f"{archive.resolve()} {facts.st_size} {facts.st_mtime_ns}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _unpack_into(target: Path, archive: Path) -> None:
    """Unpack next to `target` and rename, so that the model appears complete."""
    with scratch_directory(target.parent) as work:
        unpacked = work / "model"
        unpacked.mkdir(mode=0o700)
        if archive.name.lower().endswith(".zip"):
            with zipfile.ZipFile(archive) as packed:
                _write(map(partial(_zipped, packed), packed.infolist()), unpacked)
        else:
            with tarfile.open(archive) as tar:
                _write(map(partial(_tarred, tar), tar), unpacked)
        try:
            os.rename(unpacked, target)
        except OSError:
            if not target.is_dir():  # else another process was faster
                raise


class _Member(NamedTuple):
    """A file or directory of an archive. `open` None = a directory."""

    name: str
    size: int
    open: Callable[[], IO[bytes] | None] | None


def _tarred(packed: tarfile.TarFile, member: tarfile.TarInfo) -> _Member:
    if not member.isreg() and not member.isdir():
        raise _neither(member.name)
    return _Member(member.name, member.size, None if member.isdir() else partial(packed.extractfile, member))


def _zipped(packed: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Member:
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _neither(member.filename)
    return _Member(member.filename, member.file_size, None if member.is_dir() else partial(packed.open, member))


def _neither(name: str) -> ValueError:
    return ValueError(f"member {name} must be a file or a directory, not a link or a device")


def _write(members: Iterable[_Member], directory: Path) -> None:
    """Raises: ValueError for a name that leads out of `directory`, or if there is no room."""
    free = shutil.disk_usage(directory).free
    size = 0
    for member in members:
        name = PurePosixPath(member.name)
        if name.is_absolute() or PureWindowsPath(member.name).anchor or ".." in name.parts:
            raise ValueError(f"member {member.name} must be a relative path without ..")
        size += member.size
        if size > free:  # a small archive can hold more than any disk
            raise ValueError(f"its contents need at least {size} bytes, and {free} are free")
        path = directory / name
        if member.open is None:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        source = member.open()
        assert source is not None  # it is a file
        with source, path.open("wb") as target:
            shutil.copyfileobj(source, target, _PIECE)
