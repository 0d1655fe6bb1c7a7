"""The seam to the file system: what the store asks of its directory and its files.

Does: define protocols. Does not: reach a disk (`directory` does, and what tests put in its place). Used by the other
modules here, on any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol


class Facts(Protocol):
    """Facts about a file, as `os.stat_result` has them."""

    @property
    def st_size(self) -> int: ...

    @property
    def st_nlink(self) -> int: ...

    @property
    def st_mtime(self) -> float: ...

    @property
    def st_mtime_ns(self) -> int: ...


class StoreFile(Protocol):
    """An open file, which is closed, and whose lock ends, when nobody holds it any more. All but `try_lock` as in `os`."""

    def pread(self, num_bytes: int, offset: int) -> bytes:
        """Raises: OSError, as all of these do."""
        ...

    def preadv(self, views: Sequence[memoryview], offset: int) -> int: ...

    def pwritev(self, views: Sequence[memoryview], offset: int) -> int: ...

    def truncate(self, num_bytes: int) -> None: ...

    def sync(self) -> None: ...

    def stat(self) -> Facts: ...

    def try_lock(self) -> bool:
        """Lock the file for as long as it is open; False if another process has locked it."""
        ...


class StoreDirectory(Protocol):
    """A directory that holds segments, and a lock; `path` is for people."""

    @property
    def path(self) -> Path: ...

    def changed_ns(self) -> int:
        """The time at which a name was last added or taken away. Raises: OSError, as all of these do."""
        ...

    def names(self) -> list[str]:
        """The segments' names, the oldest first."""
        ...

    def free_bytes(self) -> int:
        """Bytes that may still be written."""
        ...

    def stat(self, name: str) -> Facts:
        """A file's facts."""
        ...

    def open(self, name: str, *, writes: bool = False) -> StoreFile:
        """A segment. Raises: OSError, also if another user can have written it."""
        ...

    def create(self) -> tuple[str, StoreFile]:
        """A new segment, to be written, under a name that no process has used."""
        ...

    def delete(self, name: str) -> None:
        """Take a name away; who has the file open still reads it. No error if it is gone already."""
        ...

    def set_time(self, name: str, seconds: float) -> None:
        """Set the time of last use."""
        ...

    def lock(self, wait_s: float) -> AbstractContextManager[None]:
        """Keeps other processes, and other threads, from adding and deleting segments.

        Raises: Busy after `wait_s`, so that a process that stands still does not make the others stand; OSError.
        """
        ...


class Busy(OSError):
    """Another process holds the lock, and goes on holding it."""
