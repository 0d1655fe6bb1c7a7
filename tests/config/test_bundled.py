"""The words for the models that come with the package."""

from pathlib import Path

import pytest

from dragoman.config.bundled import BUNDLED
from dragoman.config.resolve import demo_model_dir, resolve
from dragoman.config.several import resolve_all
from dragoman.config.sources import Given
from tests.support.tables import table


def named(word: str) -> list[Given]:
    return [Given("MODEL_DIR", "option.model_id", word, "command line")]


@table("word", ["demo", "demo-vision"])
def test_a_word_names_a_bundled_model(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = resolve(named(word), {}, demo_model_dir())
    assert (config.model_dir, config.name) == (BUNDLED[word], word)


def test_a_directory_without_a_model_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "model.py").touch()
    assert resolve(named("demo"), {}, demo_model_dir()).model_dir == BUNDLED["demo"]


@table("sign", ["config.json", "1/config.json", "a.gguf", "serving.properties"])
def test_a_model_of_that_name_precedes_the_bundled_one(
    sign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / sign.replace("/", "-") / "demo-vision" / sign
    file.parent.mkdir(parents=True)
    file.touch()
    monkeypatch.chdir(tmp_path / sign.replace("/", "-"))
    assert resolve(named("demo-vision"), {}, demo_model_dir()).model_dir in (Path("demo-vision"), Path("demo-vision/1"))


def test_the_environment_can_name_a_bundled_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = resolve([], {"HF_MODEL_ID": "demo-vision"}, demo_model_dir())
    assert config.model_dir == BUNDLED["demo-vision"]


def test_both_bundled_models_are_served_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = [Given("--load-models", "load_models", "demo,demo-vision", "command line")]
    models = resolve_all(given, {}, demo_model_dir(), tmp_path / "none").models
    assert [config.name for config in models] == ["demo", "demo-vision"]
