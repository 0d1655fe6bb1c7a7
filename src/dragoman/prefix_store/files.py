"""The most recently used segment files, kept open, so that a store of 1,600 segments needs few descriptors."""

from __future__ import annotations

import threading

from dragoman.prefix_store.file_system import StoreDirectory, StoreFile

_MAX_OPEN = 32


class OpenFiles:
    def __init__(self, directory: StoreDirectory) -> None:
        self._directory = directory
        self._files: dict[str, StoreFile] = {}  # the most recently used last
        self._lock = threading.Lock()

    def open(self, name: str) -> StoreFile:
        with self._lock:
            file = self._files.pop(name, None) or self._directory.open(name)
            self._files[name] = file
            if len(self._files) > _MAX_OPEN:
                del self._files[next(iter(self._files))]
        return file

    def forget(self, name: str) -> None:
        """Drop a file, which closes after its last reader."""
        with self._lock:
            self._files.pop(name, None)

    def close(self) -> None:
        with self._lock:
            self._files.clear()
