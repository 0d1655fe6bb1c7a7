"""The limit of files that this process may have open at once: each connection is one.

Does: raise the limit to what the system allows, and warn where that is little. Does not: count connections.
Called when the server starts, on the main thread.
"""

from __future__ import annotations

import logging
import sys

FEW = 4096  # of these some are the models' and the log's, all others are connections

logger = logging.getLogger("dragoman.server")


def raise_descriptor_limit() -> int | None:
    """The most files that may be open from now on, None where the system has no such limit."""
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
