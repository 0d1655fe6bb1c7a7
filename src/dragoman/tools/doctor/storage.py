"""Examines the caches of models and their builds: write access, size, speed. Writes a temporary file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from dragoman.tools.doctor.findings import Finding, Section, in_gb

_PROBE_BYTES = 64 << 20
_PROBE_PIECE = 4 << 20
_PROBE_S = 0.5  # for writing, and for reading; less shows a slow disk too
_LEAST_FREE = 2 << 30  # a small model and its build
_MANY_FILES = 100_000  # files to add up; more would take too long


@dataclass(frozen=True, slots=True)
class Cache:
    """A directory that a server writes. `lost`: the consequence without write access; `mend`: the remedy."""

    name: str
    path: Path
    purpose: str
    lost: str
    mend: str


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """Facts about a cache, in bytes. `parent`: the nearest existing directory. `read_speed`: a second, None = unknown."""

    cache: Cache
    parent: Path
    is_writable: bool
    size: int
    free: int
    read_speed: float | None = None


def cache_facts(cache: Cache, *, measures: bool) -> CacheFacts:
    parent = cache.path
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    is_writable = _can_write(parent)
    free = shutil.disk_usage(parent).free
    speed = _read_speed(parent) if measures and is_writable and free > 4 * _PROBE_BYTES else None
    return CacheFacts(cache, parent, is_writable, _size(cache.path), free, speed)


def storage_section(found: tuple[CacheFacts, ...], *, is_offline: bool) -> Section:
    lines = [*map(_line, found)] + (["the network is not used: HF_HUB_OFFLINE is set"] if is_offline else [])
    told = {
        "caches": [
            {
                "name": one.cache.name,
                "path": str(one.cache.path),
                "is_writable": one.is_writable,
                "size_bytes": one.size,
                "free_bytes": one.free,
                "read_bytes_per_s": one.read_speed,
            }
            for one in found
        ],
        "is_offline": is_offline,
    }
    return Section("disk", tuple(lines), told, tuple(_findings(found)))


def _line(one: CacheFacts) -> str:
    state = "" if one.is_writable else ", cannot be written"
    speed = f", reads {in_gb(one.read_speed)}/s" if one.read_speed else ""
    return f"{one.cache.purpose}: {one.cache.path}, {in_gb(one.size)}, {in_gb(one.free)} free{speed}{state}"


def _findings(found: tuple[CacheFacts, ...]) -> Iterator[Finding]:
    for one in found:
        if not one.is_writable:
            yield Finding("warning", f"{one.parent} cannot be written: {one.cache.lost}", one.cache.mend)
        elif one.free < _LEAST_FREE:
            yield Finding(
                "warning",
                f"{in_gb(one.free)} are free where {one.cache.purpose} lie ({one.parent})",
                f"make room, or {one.cache.mend}",
            )


def _can_write(directory: Path) -> bool:
    """True if a file can be created there; permissions do not show read-only disks."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def _size(path: Path) -> int:
    """Bytes of the files below, without links, so that the hub's files count once."""
    total = count = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                status = os.lstat(os.path.join(directory, name))
            except OSError:
                continue
            total += status.st_blocks * 512
            count += 1
        if count > _MANY_FILES:
            break
    return total


def _read_speed(directory: Path) -> float | None:
    """Bytes per second from the disk itself; the file is first dropped from the page cache."""
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            piece = os.urandom(_PROBE_PIECE)
            begin, size = perf_counter(), 0
            while size < _PROBE_BYTES and perf_counter() - begin < _PROBE_S:
                size += file.write(piece) or 0
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            begin, num_read = perf_counter(), 0
            while perf_counter() - begin < _PROBE_S and (got := file.read(_PROBE_PIECE)):
                num_read += len(got)
            return num_read / max(perf_counter() - begin, 1e-9)
    except OSError:
        return None
