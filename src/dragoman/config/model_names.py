"""Chooses the names of models in calls, by the model's place. Called by `resolve`."""

from __future__ import annotations

from pathlib import Path

from dragoman.config.bundled import DEMO_NAME, bundled_name
from dragoman.config.ovms import GRAPH_NAME
from dragoman.files.model_texts import model_name
from dragoman.hub.cache import repo_of


def usual_names(named: Path, directory: Path, model_dir: Path, demo_dir: Path) -> tuple[str, ...]:
    """The default names of a model, by its path as `named`, the version's folder, and the weights' folder."""
    is_ovms = named != directory or (directory / GRAPH_NAME).is_file()  # models lie in folders "1"
    known = DEMO_NAME if model_dir == demo_dir else bundled_name(model_dir)
    return hub_names(model_dir) or (known or model_name(named if is_ovms else model_dir) or DEMO_NAME,)


def hub_names(model_dir: Path) -> tuple[str, ...]:
    """The names of a model in the hub's cache: the last part, which fits every URL, and the whole name; () for others."""
    repo = repo_of(model_dir if model_dir.is_dir() else model_dir.parent)
    return (repo.rpartition("/")[2], repo) if repo else ()


def renamed(name: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((name, *names)))
