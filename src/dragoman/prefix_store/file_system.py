"""The store's interface to the file system.

Does: define protocols. Does not: access a disk (`directory` does, and its replacements in tests). Used by the other
modules here, on any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol


class Facts(Protocol):
    """Facts about a file, as in `os.stat_result`."""

    @property
    def st_size(self) -> int: ...

    @property
    def st_nlink(self) -> int: ...

    @property
    def st_mtime(self) -> float: ...

    @property
    def st_mtime_ns(self) -> int: ...


class StoreFile(Protocol):
    """An open file, closed and unlocked with its last reference. Methods except `try_lock` as in `os`."""

    def pread(self, num_bytes: int, offset: int) -> bytes:
        """Raises: OSError, as all of these do."""
        ...

    def preadv(self, views: Sequence[memoryview], offset: int) -> int: ...

    def pwritev(self, views: Sequence[memoryview], offset: int) -> int: ...

    def truncate(self, num_bytes: int) -> None: ...

    def sync(self) -> None: ...

    def stat(self) -> Facts: ...

    def try_lock(self) -> bool:
        """Lock the file while it is open; False if another process has locked it."""
        ...


class StoreDirectory(Protocol):
    """A directory that holds segments, and a lock; `path` is for people."""

    @property
    def path(self) -> Path: ...

    def changed_ns(self) -> int:
        """The time of the last change of names. Raises: OSError, as all of these do."""
        ...

    def names(self) -> list[str]:
        """The segments' names, the oldest first."""
        ...

    def free_bytes(self) -> int:
        """The free bytes."""
        ...

    def stat(self, name: str) -> Facts:
        """A file's facts."""
        ...

    def open(self, name: str, *, writes: bool = False) -> StoreFile:
        """An open segment. Raises: OSError, also if another user can have written it."""
        ...

    def create(self) -> tuple[str, StoreFile]:
        """A new segment for writing, with an unused name."""
        ...

    def delete(self, name: str) -> None:
        """Delete a name, if it exists; open files stay readable."""
        ...

    def set_time(self, name: str, seconds: float) -> None:
        """Set the time of last use."""
        ...

    def lock(self, wait_s: float) -> AbstractContextManager[None]:
        """Hold the lock against other processes and threads that add or delete segments.

        Raises: Busy after `wait_s`, so that a hanging process does not block the others; OSError.
        """
        ...


class Busy(OSError):
    """Another process holds the lock for too long."""
