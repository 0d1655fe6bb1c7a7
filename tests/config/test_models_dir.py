"""The models in a directory, by their names in calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.cli.arguments import read_arguments
from dragoman.config.models_dir import models_in
from dragoman.config.resolve import ConfigError
from dragoman.config.run_time import ModelStore, NotStored
from dragoman.config.several import Resolved, resolve_all

COMMIT = "0123456789" * 4


def put(root: Path, *files: str) -> None:
    """Empty files, with their folders."""
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{}" if name.endswith(".json") else "", encoding="utf-8")


def resolved(tmp_path: Path, line: str) -> Resolved:
    """The models of a command line."""
    put(tmp_path / "demo", "config.json")
    return resolve_all(read_arguments(line.split()).givens, {}, tmp_path / "demo", tmp_path / "none")


def test_every_kind_of_model_has_its_name(tmp_path: Path) -> None:
    put(
        tmp_path,
        "plain/config.json",
        "org/nested/config.json",
        "export/openvino_model.xml",
        "export/openvino_model.bin",
    )
    put(tmp_path, "org/deep/one.gguf", "file.Q4_K_M.gguf", "split-00001-of-00002.gguf", "split-00002-of-00002.gguf")
    put(
        tmp_path, "types/a-q4.gguf", "types/a-q8.gguf", "types/mmproj-a.gguf", "empty/readme.txt", "a/b/c/d/config.json"
    )
    put(tmp_path, ".hidden/config.json", "two words/config.json", "with,comma/config.json")
    cache = f"models--Org--Hub/snapshots/{COMMIT}"
    put(tmp_path, f"{cache}/config.json", f"{cache}/model.safetensors", "models--Org--Half/snapshots/1/config.json")
    put(tmp_path, "models--Org--Hub/snapshots/newer/config.json")
    put(tmp_path, "models--Org--Types/snapshots/1/q4.gguf", "models--Org--Types/snapshots/1/q8.gguf")
    (tmp_path / "models--Org--Hub/refs").mkdir()
    (tmp_path / "models--Org--Hub/refs/main").write_text(COMMIT, encoding="ascii")
    found = {one.name: str(one.directory.relative_to(tmp_path)) for one in models_in(tmp_path)}
    assert found == {
        "plain": "plain",
        "org/nested": "org/nested",
        "export": "export",
        "org/deep": "org/deep",
        "file.Q4_K_M": "file.Q4_K_M.gguf",
        "split": "split-00001-of-00002.gguf",
        "types/a-q4": "types/a-q4.gguf",
        "types/a-q8": "types/a-q8.gguf",
        "Org/Hub": cache,
        "Org/Types/q4": "models--Org--Types/snapshots/1/q4.gguf",
        "Org/Types/q8": "models--Org--Types/snapshots/1/q8.gguf",
    }


def test_names_never_lead_out_of_the_directory(tmp_path: Path) -> None:
    root = tmp_path / "models"
    put(tmp_path, "secret/config.json", "secret.gguf")
    put(root, "inside/config.json")
    (root / "linked").symlink_to(tmp_path / "secret")
    (root / "linked.gguf").symlink_to(tmp_path / "secret.gguf")
    (root / "again").symlink_to(root / "inside")
    assert [one.name for one in models_in(root)] == ["again", "inside"]
    found = resolved(tmp_path, f"--models-dir {root}")
    store = ModelStore(root, found.process, [], {}, tmp_path / "demo", is_named=True)
    assert store.named("inside").directory == root / "inside"
    for name in ("../secret", "linked", "secret", str(tmp_path / "secret"), "inside/../../secret", "", ".", "inside/"):
        with pytest.raises(NotStored, match="not found"):
            store.named(name)


def test_without_a_chosen_model_no_model_is_loaded_at_the_start(tmp_path: Path) -> None:
    put(tmp_path, "models/a/config.json", "models/b/config.json")
    found = resolved(tmp_path, f"--models-dir {tmp_path}/models")
    assert (found.models, found.store, found.is_named) == ((), tmp_path / "models", True)
    found = resolved(tmp_path, f"{tmp_path}/models/a --models-dir {tmp_path}/models")
    assert ([one.name for one in found.models], found.is_named) == (["a"], True)


def test_what_cannot_be_is_told(tmp_path: Path) -> None:
    put(tmp_path, "models/a/config.json")
    for line, problem in {
        "--models-dir /nowhere/at/all": "must be an existing directory",
        f"--models-dir {tmp_path}/models --model-store {tmp_path}": "contradicts model_store",
        "--idle-unload soon": "--idle-unload=soon (command line): must be a number of seconds, or a duration like 10m",
        "--idle-unload -5m": "at least 0",
        "--memory-gb 0": "must be a number > 0",
    }.items():
        with pytest.raises(ConfigError, match=problem.replace("(", r"\(").replace(")", r"\)")):
            resolved(tmp_path, line)
