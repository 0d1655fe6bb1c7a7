"""A model loads beside the rest of a start: the result, the failure and the giving up reach whoever waits for it."""

from __future__ import annotations

import asyncio
import shutil
import threading
from itertools import takewhile
from pathlib import Path

import pytest

from dragoman.compose import build_served_model
from dragoman.config.resolve import Config, ConfigError, demo_model_dir, resolve
from dragoman.config.sources import Given
from dragoman.engine.base import MemoryNeeds
from dragoman.engine.factory import EngineSetup, LoadedEngine, Progress
from dragoman.engine.rolling.factory import LoadedRolling
from dragoman.host.loading import LoadAbandoned, ModelLoad, has_model, memory_needs
from dragoman.models import LoadedModel, ModelError
from dragoman.models.stages import COMPILING, READING_STAGES, WARMING_UP
from tests.support.exported_model import write_exported
from tests.support.random_checkpoint import UNTIED, write_checkpoint


def config_of(directory: Path, **options: str) -> Config:
    """The configuration of a model directory and nothing else but `options`."""
    givens = [Given("model", "option.model_id", str(directory), "test")]
    givens += [Given(name, name, text, "test") for name, text in options.items()]
    return resolve(givens, {}, demo_model_dir())


def stages_of(config: Config) -> list[str]:
    """The stages that a load reports, each once."""
    stages: list[str] = []
    ModelLoad(config, lambda stage, _fraction: stages.append(stage)).wait()
    return list(dict.fromkeys(stages))


def _model_of(loading: ModelLoad) -> LoadedModel:
    loaded = loading.result()
    assert isinstance(loaded, LoadedRolling)
    return loaded.model


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(UNTIED, tmp_path_factory.mktemp("model"))


def test_the_result_is_the_model_and_its_stages_are_reported(directory: Path, tmp_path: Path) -> None:
    stages: list[str] = []
    loading = ModelLoad(config_of(directory, cache_dir=str(tmp_path)), lambda stage, fraction: stages.append(stage))
    assert _model_of(loading).facts.hidden_size == UNTIED.hidden_size
    assert list(dict.fromkeys(stages)) == ["building the graph", "compiling", "warming up"]
    again = stages_of(config_of(directory, cache_dir=str(tmp_path)))
    assert [stage for stage in again if stage != "compiling"] == [
        "mapping weights",
        "warming up",
    ]  # a kept graph is compiled


def test_the_stages_of_loads_that_read_files_are_those_that_count_as_reading(directory: Path, tmp_path: Path) -> None:
    """Of a checkpoint, of what an earlier start kept of it, and of an exported graph."""
    exported, reading = write_exported("qwen3", tmp_path / "exported"), list[str]()
    for loaded in (directory, directory, exported):
        stages = stages_of(config_of(loaded, cache_dir=str(tmp_path / "kept")))
        reading += takewhile(lambda stage: stage not in (COMPILING, WARMING_UP), stages)
    assert reading == list(READING_STAGES)


@pytest.mark.parametrize("is_kept", [False, True])
def test_the_bytes_read_grow_to_the_models_size(is_kept: bool, directory: Path, tmp_path: Path) -> None:
    config = config_of(directory, cache_dir=str(tmp_path))
    if is_kept:
        ModelLoad(config, lambda *_: None).wait()
    told: list[tuple[str, float]] = []
    late: list[tuple[str, float]] = []
    loading = ModelLoad(config, lambda stage, fraction: told.append((stage, fraction)))
    loading.wait()
    stage = "mapping weights" if is_kept else "building the graph"
    fractions = [fraction for one, fraction in told if one == stage]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert is_kept or any(0 < fraction < 1 for fraction in fractions), "told while it goes on"
    loading.watch(lambda stage, fraction: late.append((stage, fraction)))
    assert late == told[-1:], "who begins to watch is told where it stands"


def test_a_model_is_loaded_for_a_process_with_others_if_it_has_them(directory: Path, tmp_path: Path) -> None:
    config = config_of(directory, cache_dir=str(tmp_path))
    assert not _model_of(ModelLoad(config, lambda *_: None)).options.has_neighbours
    assert _model_of(ModelLoad(config, lambda *_: None, has_neighbours=True)).options.has_neighbours


@pytest.mark.parametrize(("memory_bytes", "has_neighbours"), [(None, False), (1 << 30, True)])
def test_a_model_that_gets_a_share_of_the_memory_shares_the_cores_too(
    memory_bytes: int | None, has_neighbours: bool, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(directory, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}", encoding="utf-8")
    asked: list[bool] = []

    class KnownLoad(ModelLoad):
        def __init__(self, config: Config, progress: Progress, *, has_neighbours: bool, has_room: bool) -> None:
            asked.append(has_neighbours)
            super().__init__(config, progress, has_neighbours=has_neighbours, has_room=has_room)

    monkeypatch.setattr("dragoman.compose.ModelLoad", KnownLoad)
    with pytest.raises(ModelError, match=r"tokenizer.json cannot be used"):
        asyncio.run(build_served_model(config_of(tmp_path / "model"), lambda *_: None, memory_bytes))
    assert asked == [has_neighbours]


class Unread:
    """An engine's factory whose model needs 3 MiB of weights and a cache of 5 MiB, and is never loaded."""

    def needs(self, _setup: EngineSetup) -> MemoryNeeds:
        return MemoryNeeds(3 << 20, least_cache=5 << 20)

    def load(self, _setup: EngineSetup) -> LoadedEngine:
        raise AssertionError("the model was read")


@pytest.mark.parametrize("available_bytes", [(8 << 20) - 1, 0])
def test_a_model_that_does_not_fit_is_refused_before_it_is_read(
    available_bytes: int, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.host.loading.available_memory_bytes", lambda: available_bytes)
    monkeypatch.setattr("dragoman.host.loading.find_factory", lambda _name: Unread())
    loading = ModelLoad(config_of(directory), lambda *_: None)
    words = (
        f"it needs 8 MiB, of which 5 MiB are the smallest key/value cache .* {available_bytes >> 20} MiB are available"
    )
    with pytest.raises(ModelError, match=words):
        loading.result()


def test_a_model_that_fits_exactly_is_loaded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(directory)
    least = memory_needs(config).least
    monkeypatch.setattr("dragoman.host.loading.available_memory_bytes", lambda: least)
    assert _model_of(ModelLoad(config, lambda *_: None)).facts.hidden_size == UNTIED.hidden_size
    monkeypatch.setattr("dragoman.host.loading.available_memory_bytes", lambda: least - 1)
    with pytest.raises(ModelError, match="does not fit into memory"):
        ModelLoad(config, lambda *_: None).result()
    assert _model_of(ModelLoad(config, lambda *_: None, has_room=True)).facts.hidden_size == UNTIED.hidden_size


def test_result_raises_the_failure_of_the_load(tmp_path: Path) -> None:
    loading = ModelLoad(config_of(write_checkpoint(UNTIED, tmp_path), kv_dtype="bf16", dtype="f32"), lambda *_: None)
    with pytest.raises(ModelError, match="kv-dtype 'bf16'"):
        loading.result()


def test_a_cache_directory_that_cannot_be_created_is_a_configuration_error(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    loading = ModelLoad(config_of(directory, cache_dir=str(tmp_path / "file" / "cache")), lambda *_: None)
    with pytest.raises(ConfigError, match="must be a directory that can be created"):
        loading.result()


def test_an_abandoned_load_ends_at_its_next_stage(directory: Path, tmp_path: Path) -> None:
    stages: list[str] = []
    has_begun, may_go_on = threading.Event(), threading.Event()

    def progress(stage: str, fraction: float) -> None:
        stages.append(stage)
        has_begun.set()
        may_go_on.wait()

    loading = ModelLoad(config_of(directory, cache_dir=str(tmp_path)), progress)
    has_begun.wait()
    loading.abandon()
    may_go_on.set()
    loading.wait()
    with pytest.raises(LoadAbandoned):
        loading.result()
    assert len(stages) == 1


def test_a_directory_without_a_configuration_has_no_model(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def handle(inputs):\n    return None\n")
    assert has_model(config_of(directory))
    assert not has_model(config_of(tmp_path))
