"""The store's directory on disk: its owner, its lock, its files. Called by `store` and `segment`, on any thread.

Everything uses one descriptor of the directory and follows no symbolic link: the checked directory is the used one,
whatever its path means later. `StoreDirectory` is the interface, which replacements in tests implement too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

_LOCK = "lock"
_MOUNTED = "lost+found"  # in the root of file systems
_NAME = re.compile(r"[0-9a-f]{16}-[0-9]+-[0-9a-f]{8}\.blocks")  # creation in ns, process, random
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


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


class StoreError(Exception):
    """The directory cannot be used; one line with the reason and advice."""


class OpenFile:
    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)

    def pread(self, num_bytes: int, offset: int) -> bytes:
        return os.pread(self.descriptor, num_bytes, offset)

    def preadv(self, views: Sequence[memoryview], offset: int) -> int:
        return os.preadv(self.descriptor, views, offset)

    def pwritev(self, views: Sequence[memoryview], offset: int) -> int:
        return os.pwritev(self.descriptor, views, offset)

    def truncate(self, num_bytes: int) -> None:
        os.ftruncate(self.descriptor, num_bytes)

    def sync(self) -> None:
        os.fsync(self.descriptor)

    def stat(self) -> os.stat_result:
        return os.fstat(self.descriptor)

    def try_lock(self) -> bool:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class Directory:
    """A private `StoreDirectory` of this user, with only segments and a lock."""

    def __init__(self, path: Path, *, create: bool) -> None:
        """Raises: StoreError."""
        self.path = path
        try:
            if create:
                path.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileExistsError):
                    path.mkdir(mode=stat.S_IRWXU)
            if path.is_symlink():
                raise StoreError(f"{path} is a symbolic link; name the directory itself")
            self._file = OpenFile(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
            self._check()
            with self.lock(0):
                pass
        except Busy:
            pass
        except OSError as error:
            raise StoreError(f"{path} cannot hold the prefix store: {error.strerror or error}") from error

    def _check(self) -> None:
        facts = os.fstat(self._file.descriptor)
        if facts.st_uid != os.geteuid():
            raise StoreError(
                f"{self.path} belongs to user {facts.st_uid}; name a directory of user {os.geteuid()}, "
                "or one that does not exist yet"
            )
        if facts.st_mode & _OTHERS_WRITE:
            raise StoreError(
                f"{self.path} has mode {stat.S_IMODE(facts.st_mode):o}, which lets other users write to it: "
                f"`chmod 700 {self.path}`, or name a new directory inside it"
            )
        names = self._names()
        strange = sorted(name for name in names if name != _MOUNTED and not _NAME.fullmatch(name))
        if strange and _LOCK not in names:
            raise StoreError(
                f"{self.path} holds {strange[0]}, which the prefix store did not write; name an empty directory, "
                "or one that does not exist yet"
            )
        if facts.st_mode & _OTHERS:
            os.fchmod(self._file.descriptor, stat.S_IRWXU)

    def changed_ns(self) -> int:
        return os.fstat(self._file.descriptor).st_mtime_ns

    def names(self) -> list[str]:
        return sorted(name for name in self._names() if _NAME.fullmatch(name))

    def _names(self) -> list[str]:
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._file.descriptor)
        try:  # a descriptor per listing, as threads would move a shared one's position
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self) -> int:
        facts = os.fstatvfs(self._file.descriptor)
        return facts.f_bavail * facts.f_frsize

    def stat(self, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=self._file.descriptor, follow_symlinks=False)

    def open(self, name: str, *, writes: bool = False) -> OpenFile:
        flags = (os.O_RDWR if writes else os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        file = OpenFile(os.open(name, flags, dir_fd=self._file.descriptor))
        facts = file.stat()
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & _OTHERS_WRITE:
            raise OSError(errno.EPERM, f"{name} is not a file that only this user can have written")
        return file

    def create(self) -> tuple[str, OpenFile]:
        name = f"{time.time_ns():016x}-{os.getpid()}-{secrets.token_hex(4)}.blocks"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return name, OpenFile(os.open(name, flags, stat.S_IRUSR | stat.S_IWUSR, dir_fd=self._file.descriptor))

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._file.descriptor)

    def set_time(self, name: str, seconds: float) -> None:
        os.utime(name, (seconds, seconds), dir_fd=self._file.descriptor, follow_symlinks=False)

    @contextmanager
    def lock(self, wait_s: float) -> Iterator[None]:
        end = time.monotonic() + wait_s
        while not (file := self._try_lock()):
            if time.monotonic() >= end:
                raise Busy(errno.EAGAIN, f"another process holds the lock of {self.path}")
            time.sleep(0.002)
        try:
            yield
        finally:
            del file

    def _try_lock(self) -> OpenFile | None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = OpenFile(os.open(_LOCK, flags, stat.S_IRUSR | stat.S_IWUSR, dir_fd=self._file.descriptor))
        if not file.try_lock():
            return None
        try:
            is_it = os.path.samestat(self.stat(_LOCK), file.stat())
        except FileNotFoundError:
            is_it = False
        return file if is_it else None  # another process has deleted the locked file
