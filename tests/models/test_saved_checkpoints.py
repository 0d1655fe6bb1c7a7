"""Checkpoints that transformers has saved anew load: what it writes otherwise than the hub's files have it.

The entries are scripts/record_saved_checkpoints.py's, of version 5 and of 4.57.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.models import ModelOptions, load_model
from dragoman.models.architectures import architecture_of_type
from dragoman.models.config import read_config
from dragoman.models.families import read_model
from tests.support.family_checkpoint import Case, case_names, read_case, write_case
from tests.support.tables import table
from tests.support.tiers import width

SAVED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("saved_by_transformers.json").read_text(encoding="utf-8")
)
ENTRIES = [(version, name) for version, entries in SAVED.items() for name in entries]
RENAMED = [(version, name) for version, name in ENTRIES if "tensors" in SAVED[version][name]]
FEW = [
    next(entry for entry in RENAMED if entry[1] == name)
    for name in ("internvl", "qwen3_5 text", "qwen3_5_moe text", "gemma3_vision text", "qwen3_next")
    if any(entry[1] == name for entry in RENAMED)
]


def saved_case(version: str, name: str) -> Case:
    """The case as that version of transformers has written it."""
    entry, case = SAVED[version][name], read_case(name.split()[0])
    config = {key: value for key, value in case["config"].items() if key not in entry["without"]} | entry["config"]
    return case | {"config": config, "extra_tensors": {}, "tensors": entry.get("tensors", case["tensors"])}


@table("version", SAVED)
def test_every_config_is_read_whole_and_means_the_same(version: str) -> None:
    for name in SAVED[version]:
        config = saved_case(version, name)["config"]
        facts = read_model(config).facts
        if not name.endswith(" text"):
            assert facts == read_model(read_case(name.split()[0])["config"]).facts, name


@pytest.mark.parametrize(("version", "name"), width(RENAMED, FEW))
def test_tensors_are_found_by_the_names_that_are_written(version: str, name: str, tmp_path: Path) -> None:
    case = saved_case(version, name)
    loaded = load_model(write_case(name.split()[0], case, tmp_path), ModelOptions(weight_type="f32"))
    assert loaded.facts.layers == read_model(case["config"]).facts.layers


def test_a_model_type_names_the_architecture_where_config_json_has_none(tmp_path: Path) -> None:
    """As tools write that save a config by itself."""
    for name in case_names():
        config = read_case(name)["config"]
        if "auto_map" in config or architecture_of_type(config["model_type"]) is None:
            continue  # code of its own, by names of its own
        for nothing in ("null", "[]"):
            (tmp_path / "config.json").write_text(
                json.dumps(config | {"architectures": json.loads(nothing)}), encoding="utf-8"
            )
            assert read_model(read_config(tmp_path)).facts == read_model(config).facts, name
