"""A disk in memory for the prefix store: it loses its power, fills up, flips bits and loses files.

Does: what `StoreDirectory` asks for, for several processes that share the disk. A process is killed by letting go of its
store: its locks end with its open files, as the system has it.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.prefix_store.directory import Busy

_SECTOR = 512  # bytes that reach the disk together


@dataclass(eq=False)
class Inode:
    """A file's bytes. `synced`: those that a loss of power leaves for sure, None if not even the name is."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytes | None = None
    st_mtime_ns: int = field(default_factory=time.time_ns)
    st_nlink: int = 1
    locked_by: weakref.ref[MemoryFile] | None = None

    @property
    def st_size(self) -> int:
        return len(self.data)

    @property
    def st_mtime(self) -> float:
        return self.st_mtime_ns / 1e9


class MemoryDisk:
    """The files of one directory by name. `room`: bytes that all of them may have."""

    def __init__(self) -> None:
        self.files: dict[str, Inode] = {}
        self.deleted: dict[str, Inode] = {}  # names that come back if the power goes now
        self.room = 1 << 40
        self.changed_ns = time.time_ns()
        self.locked_by: object | None = None
        self.numbers = itertools.count()

    @property
    def num_bytes(self) -> int:
        return sum(len(inode.data) for inode in self.files.values())

    def lose_power(self, chance: random.Random) -> None:
        """Leave of what was not synced whatever chance wills: sectors old or new or zero, names there or not.

        Called when no process runs any more.
        """
        for name, inode in list(self.files.items()):
            if inode.synced is None and chance.random() < 0.3:
                del self.files[name]
                continue
            old, new = inode.synced or b"", bytes(inode.data)
            length = chance.choice([len(new), max(len(old), chance.randint(0, len(new)))])
            for begin in range(0, length, _SECTOR):
                sector = slice(begin, min(begin + _SECTOR, length))
                before = old[sector].ljust(sector.stop - begin, b"\0")
                inode.data[sector] = chance.choice([before, new[sector].ljust(sector.stop - begin, b"\0")])
            del inode.data[length:]
        for name, inode in self.deleted.items():
            if inode.synced is not None and chance.random() < 0.3:
                inode.data, inode.st_nlink = bytearray(inode.synced), 1
                self.files[name] = inode
        self.deleted.clear()
        for inode in self.files.values():
            inode.synced = bytes(inode.data)
        self.note_change()

    def unlink(self, name: str) -> None:
        """Take a name away. Raises: FileNotFoundError."""
        inode = self.inode(name)
        inode.st_nlink = 0
        self.deleted[name] = self.files.pop(name)
        self.note_change()

    def inode(self, name: str) -> Inode:
        """Raises: FileNotFoundError."""
        if name not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self.files[name]

    def note_change(self) -> None:
        """A name was added or taken away."""
        self.changed_ns = time.time_ns()


class MemoryFile:
    """See `StoreFile`."""

    def __init__(self, disk: MemoryDisk, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode

    def pread(self, num_bytes: int, offset: int) -> bytes:
        return bytes(self._inode.data[offset : offset + num_bytes])

    def preadv(self, views: Sequence[memoryview], offset: int) -> int:
        total = 0
        for view in views:
            part = self.pread(view.nbytes, offset + total)
            view[: len(part)] = part
            total += len(part)
        return total

    def pwritev(self, views: Sequence[memoryview], offset: int) -> int:
        """Writes what has room, as systems do."""
        data = b"".join(views)
        size = len(self._inode.data)
        is_linked = self._inode.st_nlink > 0
        room = max(self._disk.room - self._disk.num_bytes, 0) if is_linked else 1 << 40
        data = data[: max(size - offset, 0) + room]
        if not data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._inode.data.extend(bytes(max(offset - size, 0)))
        self._inode.data[offset : offset + len(data)] = data
        self._inode.st_mtime_ns = time.time_ns()
        return len(data)

    def truncate(self, num_bytes: int) -> None:
        del self._inode.data[num_bytes:]
        self._inode.data.extend(bytes(num_bytes - len(self._inode.data)))
        self._inode.st_mtime_ns = time.time_ns()

    def sync(self) -> None:
        self._inode.synced = bytes(self._inode.data)

    def stat(self) -> Inode:
        return self._inode

    def try_lock(self) -> bool:
        holder = self._inode.locked_by and self._inode.locked_by()
        if holder is None:
            self._inode.locked_by = weakref.ref(self)
        return holder is None or holder is self


class MemoryDirectory:
    """See `StoreDirectory`. Each process has one."""

    path = Path("/memory")

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk

    def changed_ns(self) -> int:
        return self._disk.changed_ns

    def names(self) -> list[str]:
        return sorted(self._disk.files)

    def free_bytes(self) -> int:
        return max(self._disk.room - self._disk.num_bytes, 0)

    def stat(self, name: str) -> Inode:
        return self._disk.inode(name)

    def open(self, name: str, *, writes: bool = False) -> MemoryFile:
        return MemoryFile(self._disk, self._disk.inode(name))

    def create(self) -> tuple[str, MemoryFile]:
        number = next(self._disk.numbers)
        name = f"{number:016x}-1-{number:08x}.blocks"
        inode = self._disk.files[name] = Inode()
        self._disk.note_change()
        return name, MemoryFile(self._disk, inode)

    def delete(self, name: str) -> None:
        if name in self._disk.files:
            self._disk.unlink(name)

    def set_time(self, name: str, seconds: float) -> None:
        self._disk.inode(name).st_mtime_ns = int(seconds * 1e9)

    @contextmanager
    def lock(self, wait_s: float) -> Iterator[None]:
        if self._disk.locked_by is not None:
            raise Busy(errno.EAGAIN, f"another process holds the lock, for longer than {wait_s} s")
        self._disk.locked_by = self
        try:
            yield
        finally:
            self._disk.locked_by = None
