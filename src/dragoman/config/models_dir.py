"""Finds the models in a directory, a few levels deep. Called on worker threads, for calls that list models or name a
new one.

A model's name is its path: NAME, or ORG/NAME; in a hub's cache the hub's name. In a directory with several GGUF models
each name ends with the file's. Links to models outside the directory do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dragoman.config.entries import ModelEntry
from dragoman.files.model_texts import gguf_models
from dragoman.hub.cache import graph_files, repo_in_cache, served_snapshot

SOURCE = "the models directory"
MAX_DEPTH = 3  # ORG/NAME/FILE.gguf
MAX_MODELS = 10_000  # of one directory; longer lists are useless
MAX_NAME_LENGTH = 256


def models_in(root: Path) -> list[ModelEntry]:
    """The models in `root` by name, each name once; [] if it cannot be read."""
    found: dict[str, ModelEntry] = {}
    resolved = root.resolve()
    for name, path in _models(root, "", 1):
        if len(found) >= MAX_MODELS:
            break
        is_word = name.isprintable() and len(name) <= MAX_NAME_LENGTH and len(name.replace(",", " ").split()) == 1
        if is_word and path.resolve().is_relative_to(resolved):
            found.setdefault(name, ModelEntry(path, SOURCE, name))
    return list(found.values())


def _models(folder: Path, prefix: str, depth: int) -> Iterator[tuple[str, Path]]:
    for stem, path in gguf_models(folder).items():
        yield prefix + stem, path
    for child in _folders(folder):
        if (repo := repo_in_cache(child)) is not None:
            if (snapshot := served_snapshot(child)) is not None:
                yield from _of_folder(snapshot, prefix + repo)
        elif _is_model(child):
            yield from _of_folder(child, prefix + child.name)
        elif depth < MAX_DEPTH:
            yield from _models(child, f"{prefix}{child.name}/", depth + 1)


def _of_folder(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    is_other = bool(graph_files(folder)) or next(folder.glob("*.safetensors"), None) is not None
    files = {} if is_other else gguf_models(folder)
    if len(files) > 1:
        yield from ((f"{name}/{stem}", path) for stem, path in files.items())
    elif files or _is_model(folder):
        yield name, folder


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() or bool(graph_files(folder)) or bool(gguf_models(folder))


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        return []
