"""The store's interface to the file system; `directory` implements it, and replacements in tests."""

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
    """An open file, closed and unlocked with its last reference. Methods except `try_lock` as in `os`; raise OSError."""

    def pread(self, num_bytes: int, offset: int) -> bytes: ...

    def preadv(self, views: Sequence[memoryview], offset: int) -> int: ...

    def pwritev(self, views: Sequence[memoryview], offset: int) -> int: ...

    def truncate(self, num_bytes: int) -> None: ...

    def sync(self) -> None: ...

    def stat(self) -> Facts: ...

    def try_lock(self) -> bool:
        """Lock the file while it is open; False if another process has locked it."""
        ...


class StoreDirectory(Protocol):
    """A directory that holds segments, and a lock. All methods raise OSError."""

    @property
    def path(self) -> Path: ...

    def changed_ns(self) -> int:
        """The time of the last change of names."""
        ...

    def names(self) -> list[str]:
        """The segments' names, the oldest first."""
        ...

    def free_bytes(self) -> int: ...

    def stat(self, name: str) -> Facts: ...

    def open(self, name: str, *, writes: bool = False) -> StoreFile:
        """Raises: OSError, also if another user can have written the segment."""
        ...

    def create(self) -> tuple[str, StoreFile]:
        """A new segment for writing, with an unused name."""
        ...

    def delete(self, name: str) -> None:
        """Delete a name, if it exists; open files stay readable."""
        ...

    def set_time(self, name: str, seconds: float) -> None: ...

    def lock(self, wait_s: float) -> AbstractContextManager[None]:
        """Hold the lock against others that add or delete segments. Raises: Busy after `wait_s`; OSError."""
        ...


class Busy(OSError):
    """Another process holds the lock for too long."""
