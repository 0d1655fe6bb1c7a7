"""Limits the files of a hub's model to options about how the model runs, and keeps its code from running."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from dragoman.config.combinations import Origin
from dragoman.config.foreign import OF_ENGINES, ForeignOption
from dragoman.config.kinds import FilePath, Value
from dragoman.config.names import NameIndex
from dragoman.config.option import Option
from dragoman.config.sources import Given
from dragoman.hub.cache import repo_of


def trusted(directory: Path, givens: Sequence[Given], index: NameIndex) -> tuple[list[Given], list[str]]:
    """The allowed options of a directory's files, and a line for each dropped one. Only the hub's are limited."""
    if repo_of(directory) is None:
        return list(givens), []
    refused = [given for given in givens if _reaches_out(given, index)]
    lines = [
        f"{given.name} ({given.source}): no effect in a model of the hub; only the operator can set it"
        for given in refused
    ]
    return [given for given in givens if given not in refused], lines


def keep_code_out(
    values: dict[str, Value], origins: dict[str, Origin], directories: Iterable[Path], file_name: str
) -> list[str]:
    """Switch hooks off if the file is a hub model's and no option requests it; returns a line about it."""
    if origins["hooks"].is_given or values["entry_point"] is not None:
        return []
    found = next((path for path in (directory / file_name for directory in directories) if path.is_file()), None)
    if found is None or repo_of(found.parent) is None:
        return []
    values["hooks"], origins["hooks"] = False, Origin(f"implied by {found.parent}")
    return [f"{found}: not run, since it came with a model of the hub; read it, and start with --hooks to run it"]


def _reaches_out(given: Given, index: NameIndex) -> bool:
    """True for options beyond the model, and for unknown ones: an engine would get them, such as vLLM's trust in code."""
    found = [match.target for match in index.find(given)]
    return not found or any(_is_beyond(target, given.text) for target in found)


def _is_beyond(option: Option | ForeignOption, text: str) -> bool:
    if isinstance(option, ForeignOption):
        return any(option.key in names for names in OF_ENGINES.values())
    if option.row.open_to == "operator":
        return True
    path = PurePath(text.strip().removeprefix("file://"))
    return isinstance(option.row.kind, FilePath) and (path.is_absolute() or bool({"..", "~"} & {*path.parts, text[:1]}))
