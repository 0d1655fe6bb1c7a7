"""Model archives: packed model directories as LMI's model stores hold them.

Does: unpack one into a cache directory, once, and refuse members that would land anywhere else. Does not: download, or
look into the model. Called by `several`, at start-up.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath, PureWindowsPath

from dragoman.scratch import scratch_directory

SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip")

_UNREADABLE = (OSError, EOFError, RuntimeError, ValueError, zlib.error, tarfile.TarError, zipfile.BadZipFile)
# RuntimeError: a password or a compression method that zipfile lacks; ValueError: a member's name that is no file name


class ArchiveError(Exception):
    """The archive cannot be unpacked; one line with its path and the reason."""


def archive_stem(path: Path) -> str:
    """The name of the model in an archive of this name: what stands before the suffix; "" for other files."""
    suffix = next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), "")
    return path.name[: -len(suffix)] if suffix else ""


def is_archive(path: Path) -> bool:
    """True for a file with the name of an archive."""
    return bool(archive_stem(path)) and path.is_file()


def unpack(archive: Path, cache: Path) -> Path:
    """The directory below `cache` that holds what is in `archive`: its only directory, if it has nothing else.

    An archive that has not changed since is not unpacked again. Raises: ArchiveError.
    """
    try:
        target = cache / f"{archive_stem(archive)}-{_version(archive)}"
        if not target.is_dir():
            cache.mkdir(parents=True, exist_ok=True)
            _unpack_into(target, archive)
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
    """Unpack beside `target` and rename, so that nobody ever finds half a model there."""
    with scratch_directory(target.parent) as work:
        unpacked = work / "model"
        unpacked.mkdir()
        if archive.name.lower().endswith(".zip"):
            _unzip(archive, unpacked)
        else:
            _untar(archive, unpacked)
        try:
            os.rename(unpacked, target)
        except OSError:
            if not target.is_dir():  # else another process was faster
                raise


def _untar(archive: Path, directory: Path) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise RuntimeError("this needs Python 3.11.4 or newer, which refuses unsafe members")
    free = shutil.disk_usage(directory).free
    size = 0
    with tarfile.open(archive) as packed:
        for member in packed:
            size += member.size
            _check_size(size, free)
            packed.extract(member, directory, filter="data")  # no links or names that lead out, no devices, no owners


def _unzip(archive: Path, directory: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            _check_member(member)
        _check_size(sum(member.file_size for member in packed.infolist()), shutil.disk_usage(directory).free)
        packed.extractall(directory)


def _check_size(size: int, free: int) -> None:
    """Raises: ValueError if there is no room: an archive of a few bytes can hold more than any disk."""
    if size > free:
        raise ValueError(f"its contents need at least {size} bytes, and {free} are free")


def _check_member(member: zipfile.ZipInfo) -> None:
    """Raises: ValueError for a name that leads out, or a link: zipfile would unpack both as something else."""
    path = PurePosixPath(member.filename)
    if path.is_absolute() or PureWindowsPath(member.filename).anchor or ".." in path.parts:
        raise ValueError(f"member {member.filename} must be a relative path without ..")
    if stat.S_ISLNK(member.external_attr >> 16):
        raise ValueError(f"member {member.filename} must be a file or a directory, not a link")
