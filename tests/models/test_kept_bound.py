"""Kept graphs take a bounded part of the disk together."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from dragoman.config.resolve import demo_model_dir
from dragoman.hub.inventory import STORED_TYPES, kept_models
from dragoman.models import ModelOptions, load_model
from dragoman.models.kept_files import bound_kept, note_use
from dragoman.models.storage.constants import StoredType


def test_the_least_recently_used_go_first_and_the_newest_never(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.blob" for name in "abcd"]
    for age, path in enumerate(paths):
        path.write_bytes(bytes(100))
        os.utime(path, (1000 + age, 1000 + age))
    other = tmp_path / "note.txt"
    other.write_bytes(bytes(1000))
    note_use(paths[0])
    bound_kept(tmp_path, 250, paths[3])
    assert sorted(tmp_path.iterdir()) == [paths[0], paths[3], other]
    bound_kept(tmp_path, 0, paths[3])
    assert sorted(tmp_path.iterdir()) == [paths[3], other]


def test_half_of_the_room_on_the_disk_is_left_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{name}.blob" for name in "abcd"]
    for age, path in enumerate(paths):
        path.write_bytes(bytes(100))
        os.utime(path, (1000 + age, 1000 + age))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    bound_kept(tmp_path, 1000, paths[3])
    assert sorted(tmp_path.iterdir()) == paths[2:]


def test_a_model_in_two_types_is_two_entries_of_which_the_bound_leaves_one(tmp_path: Path) -> None:
    options = ModelOptions("f32", cache_dir=tmp_path, cache_max_gb=0.0)
    load_model(demo_model_dir(), options)
    assert kept_models(tmp_path) == []
    load_model(demo_model_dir(), replace(options, cache_max_gb=1e-6))
    load_model(demo_model_dir(), replace(options, weight_type="bf16", cache_max_gb=1.0))
    formats = [one.format for one in kept_models(tmp_path)]
    assert [one.partition(" #")[0] for one in formats] == ["bf16", "f32"]
    load_model(demo_model_dir(), replace(options, weight_type="int8", cache_max_gb=1e-6))
    [left] = kept_models(tmp_path)
    assert left.format.startswith("int8")
    assert left.used


def test_every_type_of_weights_is_known_where_graphs_are_listed() -> None:
    flat = {one for part in get_args(StoredType) for one in (get_args(part) or (part,))}
    assert set(STORED_TYPES) == flat
