"""Digests of what a model's files contain, and of all that the numbers in its cache depend on."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.models import LoadedModel, ModelOptions, fingerprint, load_model
from dragoman.models.fingerprint import contents_digest
from dragoman.models.identity import model_identity
from tests.support.random_checkpoint import RandomShape, write_checkpoint


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of three pieces and a bit, as they are read."""
    monkeypatch.setattr(fingerprint, "_PIECE", 1 << 12)
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    with (directory / "model.safetensors").open("wb") as file:
        file.truncate(3 * fingerprint._PIECE + 5)
    return directory


def test_every_byte_counts_whatever_sizes_and_times_say(model: Path, tmp_path: Path) -> None:
    memo = tmp_path / "memo"
    first = contents_digest(model, memo)
    assert contents_digest(model, None) == first
    weights = model / "model.safetensors"
    before = weights.stat()
    for place in (0, before.st_size // 2, before.st_size - 1):
        with weights.open("r+b") as file:
            file.seek(place)
            file.write(b"\1")
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
        changed = contents_digest(model, memo)
        assert changed != first
        assert contents_digest(model, None) == changed
        first = changed
    (model / "config.json").write_text('{"rope_theta": 1}')
    assert contents_digest(model, memo) != first


def test_files_that_have_not_changed_are_not_read_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memo = tmp_path / "memo"
    first = contents_digest(model, memo)

    def refuse(*_args: object) -> str:
        raise AssertionError("read")

    with monkeypatch.context() as patch:
        patch.setattr(fingerprint, "_hashed", refuse)
        assert contents_digest(model, memo) == first
        (model / "again").symlink_to(model)
        assert contents_digest(model / "again", memo) == first
    [kept] = memo.iterdir()
    kept.write_bytes(b"{")
    assert contents_digest(model, memo) == first
    kept.chmod(0o666)  # anybody could have written it
    with monkeypatch.context() as patch:
        patch.setattr(fingerprint, "_hashed", refuse)
        with pytest.raises(AssertionError, match="read"):
            contents_digest(model, memo)


CHANGES: dict[str, Callable[[LoadedModel], LoadedModel]] = {
    "weights": lambda one: replace(
        one, profile=replace(one.profile, weights=replace(one.profile.weights, is_ours=True))
    ),
    "arithmetic": lambda one: replace(one, profile=replace(one.profile, inference_type="bf16")),
    "cache": lambda one: replace(one, profile=replace(one.profile, kv_type="u8")),
    "kernels": lambda one: replace(one, profile=replace(one.profile, activation_group=64)),
    "blocks": lambda one: replace(one, profile=replace(one.profile, block_size=16)),
    "processor": lambda one: replace(
        one, profile=replace(one.profile, processor=replace(one.profile.processor, name="another"))
    ),
    "adapters": lambda one: replace(one, adapters_key="adapters q_proj"),
    "pictures": lambda one: replace(one, options=replace(one.options, picture_changes='{"size": 1}')),
    "rows": lambda one: replace(one, options=replace(one.options, takes_back=True)),
}


def test_whatever_the_numbers_of_a_cache_depend_on_is_part_of_its_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_checkpoint(RandomShape("identity", seed=1), tmp_path)
    model = load_model(directory, ModelOptions("f32", num_threads=1))
    found = {"": model_identity(model, "a", "prompt")}
    assert found[""] == model_identity(load_model(directory, ModelOptions("f32", num_threads=1)), "a", "prompt")
    found |= {name: model_identity(change(model), "a", "prompt") for name, change in CHANGES.items()}
    found["contents"] = model_identity(model, "b", "prompt")
    found["mode"] = model_identity(model, "a", "all")
    found["threads"] = model_identity(load_model(directory, ModelOptions("f32", num_threads=2)), "a", "prompt")
    monkeypatch.setenv("OV_CPU_MAX_ISA", "AVX2")
    found["instructions"] = model_identity(model, "a", "prompt")
    assert len(set(found.values())) == len(found), found
