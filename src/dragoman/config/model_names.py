"""The names that clients may call a model by: those that it has where nobody gives it one, and those of an entry's.

Does: choose names by where the model lies. Does not: read options, or look into the model. Called by `resolve`.
"""

from __future__ import annotations

from pathlib import Path

from dragoman.config.bundled import DEMO_NAME, bundled_name
from dragoman.config.kinds import Value
from dragoman.config.ovms import GRAPH_NAME
from dragoman.files.model_texts import model_name
from dragoman.hub.cache import repo_of


def usual_names(named: Path, directory: Path, model_dir: Path, demo_dir: Path) -> tuple[str, ...]:
    """The names of a model that nobody has named, by its path as it was `named`, the version's folder, and its weights'."""
    is_ovms = named != directory or (directory / GRAPH_NAME).is_file()  # its folders of models are called "1"
    known = DEMO_NAME if model_dir == demo_dir else bundled_name(model_dir)
    return hub_names(model_dir) or (known or model_name(named if is_ovms else model_dir) or DEMO_NAME,)


def hub_names(model_dir: Path) -> tuple[str, ...]:
    """The names of a model in the hub's cache, () for others: the last part, which fits every URL, and the whole one."""
    repo = repo_of(model_dir if model_dir.is_dir() else model_dir.parent)
    return (repo.rpartition("/")[2], repo) if repo else ()


def renamed(name: str, names: Value) -> tuple[str, ...]:
    """`name`, with all other names as aliases."""
    assert isinstance(names, tuple)
    return tuple(dict.fromkeys((name, *names)))
