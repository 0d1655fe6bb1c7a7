"""The models that a process serves: the words of `load_models`, and the contents of a model store, both in LMI's form."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dragoman.config.archives import archive_stem, is_archive
from dragoman.config.bundled import bundled_or

ALL = "ALL"
NONE = "NONE"
ENGINES = ("", "python", "mpi")  # LMI's engines for language models
CPUS = ("", "*", "cpu", "-1")
MAX_HEAD_PARTS = 4  # NAME:VERSION:ENGINE:DEVICES
FORM = "[NAME[:VERSION[:ENGINE[:DEVICES]]]=]PATH"


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model to serve: a directory with its serving.properties, or an archive to unpack.

    `name` "" = by its options or directory. `source`: for messages. `notices`: settings without effect.
    """

    directory: Path
    source: str
    name: str = ""
    version: str = ""
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelList:
    """ALL, NONE, or entries separated by commas or blanks. Raises: ValueError also for a path of another machine."""

    allowed = (
        f"{ALL} (everything in model_store), {NONE} (nothing until it is asked for), or {FORM} entries separated "
        "by commas, with the path of a directory or archive on this machine"
    )

    placeholder = "MODELS"

    def parse(self, text: str) -> tuple[str, ...]:
        words = tuple(text.replace(",", " ").split())
        if len(words) == 1 and words[0].upper() in (ALL, NONE):
            return (words[0].upper(),)
        for word in words:
            parse_entry(word, "")
        if not words or {ALL, NONE} & set(words) or len(set(words)) < len(words):
            raise ValueError(text)
        return words


def parse_entry(word: str, source: str) -> ModelEntry:
    """The model of one entry, perhaps with its head in brackets. Raises: ValueError for another form or machine."""
    head, equals, path = _split(word)
    parts = head.removeprefix("[").removesuffix("]").split(":")
    if not path or "://" in path or path == NONE or (equals and not parts[0]) or len(parts) > MAX_HEAD_PARTS:
        raise ValueError(word)
    name, version, engine, devices = (*parts, "", "", "")[:MAX_HEAD_PARTS]
    notices = []
    if engine.lower() not in ENGINES:
        notices.append(f"{word} ({source}): no effect of engine {engine} here; the engine is built in")
    if devices.lower() not in CPUS:
        notices.append(f"{word} ({source}): no effect of device {devices} here; the engine chooses its devices")
    directory = bundled_or(Path(os.path.expanduser(path)))
    stem = archive_stem(directory) if is_archive(directory) else ""
    return ModelEntry(directory, source, name or stem, version, tuple(notices))


def _split(word: str) -> tuple[str, str, str]:
    head, equals, url = word.partition("=") if "=" in word else ("", "", word)
    return head, equals, url.removeprefix("file://")


def counted_from(home: Path, words: tuple[str, ...]) -> tuple[str, ...]:
    """The entries, with relative paths resolved from `home`."""
    moved = []
    for word in words:
        head, equals, path = _split(word)
        moved.append(word if word in (ALL, NONE) else f"{head}{equals}{home / os.path.expanduser(path)}")
    return tuple(moved)


def store_entries(store: Path, source: str) -> list[ModelEntry]:
    """The models in `store`: its directories and archives, or itself if it has other files; [] if it is empty."""
    if not store.is_dir():
        return []
    children = sorted(child for child in store.iterdir() if not child.name.startswith("."))
    if not all(child.is_dir() or is_archive(child) for child in children):
        return [ModelEntry(store, source)]
    return [ModelEntry(child, source, name=child.name if child.is_dir() else archive_stem(child)) for child in children]
