"""A store of blocks in memory, whose disk can fail, stand still and forget."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dragoman.prefix_store import BlockStore


class FakeDisk:
    """What outlives engines: contents by key, what was wanted of each, and how it fails.

    `fails`: asked for each block that is read; True = it is damaged. `is_full`: nothing more is taken.
    """

    def __init__(self) -> None:
        self.contents: dict[bytes, bytes] = {}
        self.keeps: dict[bytes, tuple[float | None, bytes]] = {}
        self.touched: list[bytes] = []
        self.fails: Callable[[bytes], bool] = lambda _key: False
        self.is_full = False
        self.num_reads = 0
        self.gate, self.write_gate = threading.Event(), threading.Event()
        self.gate.set()
        self.write_gate.set()
        self.has_begun_to_write = threading.Event()
        self.is_refreshed = threading.Event()


class FakeStore(BlockStore):
    """A `BlockStore` over such a disk. Reads and writes wait while the disk's gates are closed."""

    def __init__(self, disk: FakeDisk) -> None:
        self.disk = disk
        self.is_closed = False

    def __contains__(self, key: bytes) -> bool:
        return key in self.disk.contents

    def fetch(self, keys: Sequence[bytes]) -> None:
        pass

    def read(self, keys: Sequence[bytes], into: Sequence[Any]) -> int:
        """A damaged block leaves half of its bytes behind."""
        assert self.disk.gate.wait(30)
        for number, (key, parts) in enumerate(zip(keys, into, strict=True)):
            self.disk.num_reads += 1
            content = self.disk.contents.get(key)
            is_damaged = self.disk.fails(key)
            if content is None or is_damaged:
                self.disk.contents.pop(key, None)
                for part in parts if is_damaged else ():
                    part[: len(part) // 2] = 99
                return number
            assert sum(part.nbytes for part in parts) == len(content)
            begin = 0
            for part in parts:
                part[:] = np.frombuffer(content, np.uint8, part.nbytes, begin)
                begin += part.nbytes
        return len(keys)

    def write(
        self,
        key: bytes,
        content: Any,
        *,
        keep_until: float | None = None,
        group: bytes = b"",
        label: str = "",
        namespace: bytes = b"",
    ) -> bool:
        assert not self.is_closed
        self.disk.has_begun_to_write.set()
        assert self.disk.write_gate.wait(30)
        if self.disk.is_full:
            return False
        self.disk.contents[key] = bytes(content)
        self.disk.keeps[key] = (keep_until, group)
        return True

    def touch(self, keys: Sequence[bytes], keep_until: float | None = None, group: bytes = b"") -> None:
        self.disk.touched += keys
        if keep_until is not None:
            self.disk.keeps.update(dict.fromkeys(keys, (keep_until, group)))

    def refresh(self) -> None:
        self.disk.is_refreshed.set()

    def close(self) -> None:
        self.is_closed = True
