"""Blocks for tests of the store: each number has a key and a content, and is looked for with its bytes checked."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dragoman.prefix_store import BlockStore

BLOCK_BYTES = 1000
SEGMENT_BYTES = 10_000
BLOCKS_IN_SEGMENT = 8  # 1024 + 8 * (56 + 1000 + 32) + 40 bytes; a ninth has no room


@cache
def key(number: int) -> bytes:
    """The key of a block."""
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


@cache
def content(number: int, size: int = BLOCK_BYTES) -> bytes:
    """The bytes of a block."""
    return np.random.default_rng(number).bytes(size)


def found(store: BlockStore, number: int, size: int = BLOCK_BYTES) -> bool:
    """True if the store has a block; it must have its bytes then."""
    into = bytearray(size)
    if not store.read([key(number)], [into]):
        return False
    assert bytes(into) == content(number, size)
    return True


def all_found(store: BlockStore, numbers: Iterable[int]) -> list[int]:
    """Those of the blocks that the store has."""
    return [number for number in numbers if found(store, number)]


def opened(path: Path, budget: int = 100_000, *, clock: Callable[[], float] | None = None) -> BlockStore:
    """The store of a test."""
    directory = path / "store"
    if clock is None:
        return BlockStore.open(directory, budget, segment_bytes=SEGMENT_BYTES)
    return BlockStore.open(directory, budget, segment_bytes=SEGMENT_BYTES, clock=clock)


def files(path: Path) -> list[Path]:
    """The store's segments, the oldest first."""
    return sorted((path / "store").glob("*.blocks"))


def filled(path: Path, numbers: Iterable[int]) -> None:
    """Write these blocks into the store of a test, and close it."""
    store = opened(path)
    for number in numbers:
        assert store.write(key(number), content(number))
    store.close()


def open_files(path: Path) -> list[str]:
    """What this process has open of a test's store; where the system does not tell, nothing."""
    links = [os.readlink(link) for link in Path("/proc/self/fd").glob("*") if link.is_symlink()]
    return [link for link in links if link.startswith(f"{path / 'store'}")]


class Clock:
    """A clock that a test moves on. It begins now, since files have the system's times."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


class FullDisk:
    """A disk with room for so many more bytes, in the place of the calls that write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
        self.left = num_bytes
        self._write = os.pwritev
        monkeypatch.setattr(os, "pwritev", self.pwritev)

    def pwritev(self, descriptor: int, views: list[memoryview], offset: int) -> int:
        """Write what has room, as the system does. Raises: OSError if nothing has."""
        data = b"".join(views)[: self.left]
        if not data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.left -= len(data)
        return self._write(descriptor, [data], offset)


def damage(path: Path, offset: int, data: bytes) -> None:
    """Change bytes of a file as a failing disk does: its times stay."""
    facts = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Change one bit."""
    damage(path, offset, bytes([path.read_bytes()[offset] ^ 1 << bit]))
