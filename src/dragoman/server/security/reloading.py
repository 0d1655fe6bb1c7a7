"""Reads the files of keys and certificates again when they change, on a thread. A task of its own on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger("dragoman.server")

INTERVAL_S = 2.0  # between looks; a file may be a link that is moved, as in Kubernetes, of which nobody is told

_Marks = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class Reloadable:
    """Files that belong together. `read` reads them and puts them into effect, or raises and changes nothing."""

    title: str
    files: Sequence[Path]
    read: Callable[[], None]


class Reloader:
    def __init__(self, watched: Sequence[Reloadable], interval_s: float = INTERVAL_S) -> None:
        self._watched = [entry for entry in watched if entry.files]
        self._interval_s = interval_s
        self._marks = [_marks(entry.files) for entry in self._watched]
        self._wake = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._watched)

    def wake(self) -> None:
        """Read all files now, changed or not. Call it on the event loop."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._interval_s)
            is_told = self._wake.is_set()
            self._wake.clear()
            for number, entry in enumerate(self._watched):
                marks = await asyncio.to_thread(_marks, entry.files)
                if is_told or marks != self._marks[number]:
                    self._marks[number] = marks
                    await self._read(entry)

    async def _read(self, entry: Reloadable) -> None:
        try:
            await asyncio.to_thread(entry.read)
        except Exception as error:  # whatever is wrong with a file, what was read before still holds
            logger.error("the %s were not read anew, the old ones still hold: %s", entry.title, error)
        else:
            logger.info("the %s were read anew", entry.title)


def _marks(files: Sequence[Path]) -> _Marks:
    """A value for each file, which differs once the file has changed."""
    return tuple(_mark(path) for path in files)


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino
