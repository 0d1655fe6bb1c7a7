"""Finds symbolic links out of a model's directory: any file of this machine could be read as a part of the model.

The hub's cache is the exception: its snapshots are links to blobs of the same repository.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from dragoman.hub.cache import repo_of


def links_out(directory: Path) -> list[str]:
    """One line for each link out of `directory`; the directory itself may be a link."""
    if not directory.is_dir():
        return []
    root = directory.resolve()
    snapshots = [place for place in (root, *root.parents) if repo_of(place) is not None]  # the model may lie below one
    allowed = [root, *(place.parent.parent / "blobs" for place in snapshots[:1])]
    return [
        f"{path}: leads to {target}, out of the model's directory; put the file itself there"
        for path, target in _targets(root)
        if not any(target.is_relative_to(place) for place in allowed)
    ]


def _targets(root: Path) -> Iterator[tuple[Path, Path]]:
    """The links below a directory with their targets; a circle is its own target. Unreadable parts are skipped."""
    for folder, folders, files in os.walk(root):
        folders.sort()
        for path in (Path(folder, name) for name in sorted([*folders, *files])):
            if path.is_symlink():
                try:
                    yield path, path.resolve()
                except (OSError, RuntimeError):
                    yield path, Path("a circle of links")
