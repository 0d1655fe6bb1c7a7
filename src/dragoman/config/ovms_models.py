"""Reads OpenVINO Model Server's config.json. Source: its documentation, "Starting the server: serving multiple models"."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.config.entries import ModelEntry
from dragoman.config.foreign import ForeignOption, foreign_in
from dragoman.config.ovms import GRAPH_NAME, llm_options
from dragoman.config.pbtxt import PbtxtError

CONFIG_NAME = "config.json"
_MODELS, _GRAPHS = "model_config_list", "mediapipe_config_list"
_TEXT_ONLY = "this server generates text, and serves what has a graph.pbtxt with an LLM"
_MAX_BYTES = 16 << 20

_KEYS = {"name", "base_path", "graph_path"}
_FOREIGN = foreign_in("ovms_config")


class OvmsModels(NamedTuple):
    entries: list[ModelEntry]
    notices: list[str]
    problems: list[str]


def read_ovms_models(directory: Path) -> OvmsModels | None:
    """The models in `directory`/config.json; None if that is not OVMS's file."""
    path = directory / CONFIG_NAME
    content = _lists(path)
    if content is None:
        return None
    found = OvmsModels([], [], [])
    for key, value in content.items():
        if key not in (_MODELS, _GRAPHS) and value:
            _note(found, key, value, path)
    for item in _items(content, path, found):
        _add(found, item, path)
    if not found.entries and not found.problems:
        found.problems.append(f"{path}: lists no model that can be served; {_TEXT_ONLY}")
    return found


def _lists(path: Path) -> dict[str, Any] | None:
    """The file's content if it has one of the two lists: a model's own config.json has neither."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    is_ovms = isinstance(content, dict) and (_MODELS in content or _GRAPHS in content)
    return content if is_ovms else None


def _items(content: Mapping[str, Any], path: Path, found: OvmsModels) -> Iterator[dict[str, Any]]:
    for key in (_MODELS, _GRAPHS):
        listed = content.get(key, [])
        for number, item in enumerate(listed if isinstance(listed, list) else [listed], start=1):
            described = item.get("config") if key == _MODELS and isinstance(item, dict) else item
            name = described.get("name") if isinstance(described, dict) else None
            if isinstance(described, dict) and isinstance(name, str) and name:
                yield described
            else:
                found.problems.append(f"{path}: entry {number} of {key} must be an object with a name")


def _add(found: OvmsModels, item: dict[str, Any], path: Path) -> None:
    name = item["name"]
    base, graph_path = item.get("base_path", name), item.get("graph_path", GRAPH_NAME)
    if not (isinstance(base, str) and isinstance(graph_path, str)):
        found.problems.append(f"{path}: base_path and graph_path of {name} must be paths")
        return
    graph = path.parent / base / graph_path
    try:
        is_served = graph.is_file() and llm_options(graph) is not None
    except PbtxtError as error:
        found.problems.append(f"{graph}: {error}")
        return
    if not is_served:
        found.notices.append(f"{name} ({path}): is not served; {_TEXT_ONLY}")
    elif graph.name != GRAPH_NAME:
        found.problems.append(f"graph_path={graph_path} ({path}): the file of {name} must be called {GRAPH_NAME}")
    else:
        for key in sorted(item.keys() - _KEYS):
            _note(found, key, item[key], path)
        found.entries.append(ModelEntry(graph.parent, str(path), name))


def _note(found: OvmsModels, key: str, value: Any, path: Path) -> None:
    option = _FOREIGN.get(key, ForeignOption(key, "options of a model stand in its graph.pbtxt or serving.properties"))
    text = value if isinstance(value, str) else json.dumps(value)
    if not option.is_harmless(text):
        found.notices.append(f"{key}={text[:80]} ({path}): no effect here; {option.reason}")
