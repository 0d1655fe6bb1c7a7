"""Raises the limit of open files, of which each connection is one. Called at the start, on the main thread."""

from __future__ import annotations

import logging
import sys

FEW = 4096  # of these some are the models' and the log's, all others are connections

logger = logging.getLogger("dragoman.server")


def raise_descriptor_limit() -> int | None:
    """The number of files that may be open from now on; None = unlimited."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):  # macOS: it allows less than it says
            logger.debug("the limit of open files stays at %d", soft)
    if soft == resource.RLIM_INFINITY:
        return None
    if soft < FEW:
        logger.warning(
            "only %d files may be open at once, and each connection is one: raise the limit (ulimit -Hn, LimitNOFILE=)",
            soft,
        )
    return soft
