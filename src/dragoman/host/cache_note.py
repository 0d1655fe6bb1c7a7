"""Warns if built models cannot be kept because the default directory cannot be written.

Does: check. Does not: choose another directory. A named directory that cannot be made ends the start (`loading`). Called by
the command line before it serves.
"""

from __future__ import annotations

import os

from dragoman.config.resolve import Config
from dragoman.files.ownership import own_directory


def cache_note(config: Config) -> str:
    """The warning, "" if the directory can be written."""
    path = config.model.cache_dir
    if path is None or config.origins["cache_dir"].is_given:
        return ""
    try:
        own_directory(path)
        if os.access(path, os.W_OK | os.X_OK):
            return ""
        reason = "Permission denied"
    except OSError as error:
        reason = error.strerror or str(error)
    return f"{path} cannot be used ({reason}): each start builds its model anew; --cache-dir names another directory"
