"""Symbolic links in a model's directory: none may lead out of it.

Does: find the ones that do. Does not: follow them, or read files. Called by `resolve`, at start-up.

A directory that was packed or cloned elsewhere may hold a link to any file of this machine, which would then be read as
a chat template, or served as one. The hub's cache is the exception: its snapshots are links to blobs of the same
repository.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dragoman.hub.cache import repo_of

_FOLDERS = ("additional_chat_templates",)  # of which the files are read, too


def links_out(directory: Path) -> list[str]:
    """One line for each link that leads out of `directory`; the directory itself may be reached by one."""
    if not directory.is_dir():
        return []
    root = directory.resolve()
    allowed = [root]
    if repo_of(root) is not None:
        allowed.append(root.parent.parent / "blobs")
    return [
        f"{path}: leads to {target}, out of the model's directory; put the file itself there"
        for path, target in _targets(root)
        if not any(target.is_relative_to(place) for place in allowed)
    ]


def _targets(root: Path) -> Iterator[tuple[Path, Path]]:
    """The links among a directory's entries, with where they lead; a circle leads to itself."""
    for folder in (root, *(root / name for name in _FOLDERS if (root / name).is_dir())):
        try:
            entries = sorted(folder.iterdir())
        except OSError:  # whoever reads a file of it tells
            continue
        for path in entries:
            if path.is_symlink():
                try:
                    yield path, path.resolve()
                except (OSError, RuntimeError):
                    yield path, Path("a circle of links")
