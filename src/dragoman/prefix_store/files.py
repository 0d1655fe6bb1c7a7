"""Open files of segments, the last used of them, so that a store of 1,600 segments does not have as many open.

Called by `store`, on any thread: a file that is no longer kept here is closed when the last thread that reads it lets it go.
"""

from __future__ import annotations

import threading

from dragoman.prefix_store.file_system import StoreDirectory, StoreFile

_MAX_OPEN = 32


class OpenFiles:
    """Files by name."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._directory = directory
        self._files: dict[str, StoreFile] = {}  # the last used last
        self._lock = threading.Lock()

    def open(self, name: str) -> StoreFile:
        """The file, for reading. Raises: OSError."""
        with self._lock:
            file = self._files.pop(name, None) or self._directory.open(name)
            self._files[name] = file
            if len(self._files) > _MAX_OPEN:
                del self._files[next(iter(self._files))]
        return file

    def forget(self, name: str) -> None:
        """Close it as soon as nobody reads it."""
        with self._lock:
            self._files.pop(name, None)

    def close(self) -> None:
        """Close all."""
        with self._lock:
            self._files.clear()
