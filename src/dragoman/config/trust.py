"""Keeps a model's files from reaching out: links out of its directory, and options and code of a hub's model.

A link could make any file of this machine a part of the model. The hub's cache is the exception: its snapshots are links
to blobs of the same repository.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath

from dragoman.config.combinations import Chosen
from dragoman.config.foreign import OF_ENGINES, ForeignOption
from dragoman.config.kinds import FilePath
from dragoman.config.names import find_options
from dragoman.config.option import Option
from dragoman.config.sources import Given
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


def trusted(directory: Path, givens: Sequence[Given]) -> tuple[list[Given], list[str]]:
    """The allowed options of a directory's files, and a line for each dropped one. Only the hub's are limited."""
    if repo_of(directory) is None:
        return list(givens), []
    refused = [given for given in givens if _reaches_out(given)]
    lines = [
        f"{given.name} ({given.source}): no effect in a model of the hub; only the operator can set it"
        for given in refused
    ]
    return [given for given in givens if given not in refused], lines


def keep_code_out(chosen: Chosen, directories: Iterable[Path], file_name: str) -> list[str]:
    """Switch hooks off if the file is a hub model's and no option requests it; returns a line about it."""
    if chosen.is_given("hooks") or chosen["entry_point"] is not None:
        return []
    found = next((path for path in (directory / file_name for directory in directories) if path.is_file()), None)
    if found is None or repo_of(found.parent) is None:
        return []
    chosen.imply("hooks", False, str(found.parent))
    return [f"{found}: not run, since it came with a model of the hub; read it, and start with --hooks to run it"]


def _reaches_out(given: Given) -> bool:
    """True for options beyond the model, and for unknown ones: an engine would get them, such as vLLM's trust in code."""
    found = [match.target for match in find_options(given)]
    return not found or any(_is_beyond(target, given.text) for target in found)


def _is_beyond(option: Option | ForeignOption, text: str) -> bool:
    if isinstance(option, ForeignOption):
        return any(option.key in names for names in OF_ENGINES.values())
    if option.row.open_to == "operator":
        return True
    path = PurePath(text.strip().removeprefix("file://"))
    return isinstance(option.row.kind, FilePath) and (path.is_absolute() or bool({"..", "~"} & {*path.parts, text[:1]}))
