"""Seals a file with checksums, so that a later mapping can prove that no byte has changed. Does not withstand an attacker.

Called by `kept_graph`, on any thread; checking needs no interpreter.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

PART_BYTES = 16 << 20  # a graph's description is smaller, and lies within the last part
_DIGEST_BYTES = 8
_MARK = b"\ndragoman seal 1\n"
_NUM_WORKERS = min(4, os.cpu_count() or 1)  # a few read as fast as the memory can be read


class SealError(ValueError):
    pass


def append_seal(path: Path) -> None:
    contents = np.memmap(path, dtype=np.uint8, mode="r")
    with ThreadPoolExecutor(_NUM_WORKERS) as pool:
        digests = b"".join(pool.map(_digest, _parts(contents)))
    mode = path.stat().st_mode
    path.chmod(mode | stat.S_IWUSR)  # the plugin's files are for reading only
    with path.open("ab") as file:
        file.write(_seal(digests, contents.size))
    path.chmod(mode & ~(stat.S_IWGRP | stat.S_IWOTH))


class SealedBytes:
    """The bytes of a sealed file. Use in a `with` block around `begin_check` and `finish_check`."""

    def __init__(self, data: Bytes) -> None:
        """`data` is the whole file. Raises: SealError if it does not end in a whole seal."""
        self.contents, digests = _split(data)
        self._parts = list(_parts(self.contents))
        self._digests = [digests[i : i + _DIGEST_BYTES] for i in range(0, len(digests), _DIGEST_BYTES)]
        self._pool = ThreadPoolExecutor(_NUM_WORKERS, thread_name_prefix="check-seal")
        self._checks: list[Future[bool]] = []

    def __enter__(self) -> SealedBytes:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def begin_check(self) -> None:
        """Check the first and the last part, and go on with the others on threads. Raises: SealError."""
        last = len(self._parts) - 1
        self._checks = [self._pool.submit(self._is_unchanged, index) for index in (0, last, *range(1, last))]
        self._wait(2)

    def finish_check(self, progress: Callable[[float], None] = lambda fraction: None) -> None:
        for count in range(1, len(self._checks) + 1):
            self._wait(count, count - 1)
            progress(count / len(self._checks))

    def _wait(self, num_checks: int, first: int = 0) -> None:
        if not all(check.result() for check in self._checks[first:num_checks]):
            raise SealError("its bytes have changed since it was written")

    def _is_unchanged(self, index: int) -> bool:
        return _digest(self._parts[index]) == self._digests[index]


def _split(data: Bytes) -> tuple[Bytes, bytes]:
    tail = _DIGEST_BYTES + 8 + len(_MARK)  # digest of the digests and the size; size; mark
    size = int.from_bytes(data[-len(_MARK) - 8 : -len(_MARK)].tobytes(), "little")
    begin = data.size - tail - -(-size // PART_BYTES) * _DIGEST_BYTES
    digests = data[begin : data.size - tail].tobytes() if begin == size else b""
    if not size or begin != size or data[begin:].tobytes() != _seal(digests, size):
        raise SealError("it does not end in a seal")
    return data[:size], digests


def _seal(digests: bytes, size: int) -> bytes:
    facts = digests + size.to_bytes(8, "little")
    return digests + xxhash.xxh3_64_digest(facts) + size.to_bytes(8, "little") + _MARK


def _parts(contents: Bytes) -> Iterator[Bytes]:
    return (contents[begin : begin + PART_BYTES] for begin in range(0, contents.size, PART_BYTES))


def _digest(part: Bytes) -> bytes:
    digest: bytes = xxhash.xxh3_64_digest(part.data)
    return digest
