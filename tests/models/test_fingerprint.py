"""The fingerprint of a model changes with whatever may change its answers, and with nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from dragoman.models.fingerprint import model_fingerprint

SAMPLED = 1 << 20


def model(directory: Path, weights: bytes = b"w" * 10, config: str = "{}") -> Path:
    """A directory that looks like a model's."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(config)
    (directory / "model.safetensors").write_bytes(weights)
    return directory


def test_the_same_files_and_settings_have_the_same_fingerprint_wherever_they_lie(tmp_path: Path) -> None:
    first, second = model(tmp_path / "a"), model(tmp_path / "b")
    (second / "README.md").write_text("not part of the model")
    assert model_fingerprint(first, "int8") == model_fingerprint(second, "int8")
    assert re.fullmatch(r"fp_[0-9a-f]{10}", model_fingerprint(first, "int8"))


def test_weights_configuration_and_settings_all_count(tmp_path: Path) -> None:
    big = b"a" * (3 * SAMPLED)
    models = [
        model(tmp_path / "a"),
        model(tmp_path / "b", weights=b"x" * 10),
        model(tmp_path / "c", weights=b"w" * 11),
        model(tmp_path / "d", config="[]"),
        model(tmp_path / "e", weights=big),
        model(tmp_path / "f", weights=big[:-1] + b"b"),
        model(tmp_path / "g", weights=b"b" + big[1:]),
    ]
    found = [model_fingerprint(one, "int8", "u8") for one in models]
    found += [model_fingerprint(models[0], *settings) for settings in (("int8",), ("int8u8",), ("int4", "u8"))]
    assert len(set(found)) == len(found)


def test_a_directory_without_files_has_a_fingerprint_too(tmp_path: Path) -> None:
    assert model_fingerprint(tmp_path).startswith("fp_")
