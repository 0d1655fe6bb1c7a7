"""Bounds what kept graphs take together: the least recently used ones go first.

Does: note that a graph was used, remove files. Does not: make or map graphs. Called by the loader, on any thread; other
processes may do the same in the same directory.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)


def note_use(kept: Path) -> None:
    """The graph is used now."""
    with suppress(OSError):  # of a read-only directory, from which nothing is removed either
        os.utime(kept)


def bound_kept(directory: Path, most_bytes: float, newest: Path) -> None:
    """Remove graphs until all take at most `most_bytes`, or only `newest` is left. Who has mapped one keeps it."""
    found = []
    for path in directory.glob("*.blob"):
        with suppress(OSError):  # removed meanwhile
            facts = path.stat()
            found.append((facts.st_mtime_ns, facts.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= most_bytes:
            return
        if path != newest:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                logger.warning("the kept graph %s cannot be removed: %s", path, error.strerror)
                continue
            logger.info("the kept graph %s was removed: all take more than --cache-max-gb", path.name)
            total -= size
