"""Puts files for later starts in their place, and bounds what they take together, least recently used first.

Called by the loader, on any thread; other processes may do the same in the same directory.
"""

from __future__ import annotations

import glob
import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path

from dragoman.models.runtime.seal import append_seal

logger = logging.getLogger(__name__)


def put_kept(written: Path, target: Path) -> None:
    """Seal a file and move it to its place. Raises: OSError. Older files that differ only behind the last hyphen go."""
    append_seal(written)
    written.replace(target)
    for superseded in target.parent.glob(glob.escape(target.name.rpartition("-")[0]) + "-*.blob"):
        if superseded != target:
            superseded.unlink(missing_ok=True)


def reason(error: Exception | str) -> str:
    """The error's words on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def warn_not_kept(target: Path, error: Exception | str) -> None:
    logger.warning("what this start made cannot be kept in %s: %s", target.parent, reason(error))


def note_use(kept: Path) -> None:
    with suppress(OSError):  # in a read-only directory, where nothing is removed either
        os.utime(kept)


def bound_kept(directory: Path, most_bytes: float, newest: Path) -> None:
    """Remove graphs until only `newest` is left, or all take at most `most_bytes`, and half of what else were free."""
    found = []
    for path in directory.glob("*.blob"):
        with suppress(OSError):  # removed meanwhile
            facts = path.stat()
            found.append((facts.st_mtime_ns, facts.st_size, path))
    total = sum(size for _, size, _ in found)
    most_bytes = min(most_bytes, (shutil.disk_usage(directory).free + total) / 2)
    for _, size, path in sorted(found):
        if total <= most_bytes:
            return
        if path != newest:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                logger.warning("the kept graph %s cannot be removed: %s", path, error.strerror)
                continue
            logger.info(
                "the kept graph %s was removed: all take more than --cache-max-gb or half of the disk",
                path.name,
            )
            total -= size
