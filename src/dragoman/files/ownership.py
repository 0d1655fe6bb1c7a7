"""Directories and files that only this user can have written. On any thread.

Kept files are mapped or run unchecked. Where others may write, as in /tmp, another user may have created them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0


def own_directory(path: Path) -> None:
    """Create the directory for this user alone, or check an existing one. Raises: OSError if others may write to it.

    In a directory of this user, others lose the right to write, unless users share it, like /tmp.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=stat.S_IRWXU)
    except FileExistsError:
        facts = path.stat()
        if not stat.S_ISDIR(facts.st_mode):
            raise
        is_shared = facts.st_mode & stat.S_ISVTX
        if facts.st_uid == os.geteuid() and facts.st_mode & _OTHERS_WRITE and not is_shared:
            path.chmod(stat.S_IMODE(facts.st_mode) & ~_OTHERS_WRITE)
            facts = path.stat()
        _check(path, facts)


def open_own(path: Path) -> BinaryIO:
    """Raises: OSError, also if the file's owner is not this user or root, or others may write to it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    file = os.fdopen(descriptor, "rb")
    try:
        facts = os.fstat(descriptor)  # of the open file, whatever its name means by now
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(f"{path} must be a file")
        _check(path, facts)
    except OSError:
        file.close()
        raise
    return file


def _check(path: Path, facts: os.stat_result) -> None:
    if facts.st_uid not in (os.geteuid(), _ROOT):
        raise OSError(f"{path} belongs to user {facts.st_uid}, and must belong to user {os.geteuid()} or root")
    if facts.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(facts.st_mode)
        raise OSError(
            f"{path} has mode {mode:o}, which lets other users write to it; only its owner may have write access"
        )
