"""Directories for unfinished files, next to their final place. On any thread.

A process holds a lock on its directory while it lives. Process numbers would not do: containers repeat them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dragoman.files.ownership import own_directory

PREFIX = ".unfinished-"


@contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """An empty directory on the disk of `parent`, which is created. Raises: OSError, also if others may write there."""
    own_directory(parent)
    with ExitStack() as held:
        with _lock(parent):  # before its lock the directory must not look abandoned
            _remove_abandoned(parent)
            work = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            held.enter_context(_lock(work))
        held.callback(shutil.rmtree, work, ignore_errors=True)
        yield work


def _remove_abandoned(parent: Path) -> None:
    for work in parent.glob(f"{PREFIX}*"):
        with suppress(OSError), _lock(work, wait=False):
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _lock(directory: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a directory, which ends with the process. Without `wait`: raises OSError if it is held.

    On a file system without locks, `wait` continues without one: as no process gets a lock, nothing looks abandoned.
    """
    opened = os.open(directory, os.O_RDONLY)
    try:
        if wait:
            with suppress(OSError):
                fcntl.flock(opened, fcntl.LOCK_EX)
        else:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)
