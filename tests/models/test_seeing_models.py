"""What a start makes of checkpoints that see: with their tower, kept and mapped again, or texts alone."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from dragoman.engine.rolling.needs import memory_needs
from dragoman.engine.rolling.options import RollingOptions
from dragoman.models import ModelError, ModelOptions, load_model
from tests.support.family_checkpoint import write_case
from tests.support.vision_checkpoint import read_vision_case, write_vision_case
from tests.support.vision_model import SeeingModel, embedded


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_vision_case("idefics3_whole", read_vision_case("idefics3_whole"), tmp_path / "model")


def test_a_kept_tower_embeds_as_the_one_that_was_built(directory: Path, tmp_path: Path) -> None:
    case = SeeingModel("idefics3_whole", tmp_path / "case", ModelOptions(weight_type="f32"))
    options = ModelOptions(weight_type="f32", cache_dir=tmp_path / "graphs")
    found = []
    for is_kept in (False, True):
        loaded = load_model(directory, options)
        assert loaded.from_cache == is_kept
        assert loaded.tower is not None
        found.append(embedded(loaded.tower, case.picture("odd")))
    assert (found[0] == found[1]).all()
    assert np.allclose(found[0], case.embed(case.picture("odd")), atol=1e-5)
    num_layers = case.vision.transformer.num_layers  # type: ignore[attr-defined]
    assert len(list((tmp_path / "graphs").glob("*.blob"))) == 1 + 2 * num_layers + 1, (
        "the decoder, each half of a layer, the connector"
    )
    next((tmp_path / "graphs").glob("*.blob")).unlink()
    assert load_model(directory, options).tower is not None


def test_without_pictures_the_same_directory_serves_texts(directory: Path, tmp_path: Path) -> None:
    options = ModelOptions(weight_type="f32", cache_dir=tmp_path / "graphs")
    assert load_model(directory, options).tower is not None
    blind = load_model(directory, ModelOptions(weight_type="f32", cache_dir=tmp_path / "graphs", sees=False))
    assert blind.tower is None
    assert blind.facts.pictures is None
    assert not blind.from_cache, "another graph than that which takes embeddings"
    assert RollingOptions(limit_mm_per_prompt=0).model_options.sees is False
    assert RollingOptions(limit_mm_per_prompt=2).model_options.sees is True


def test_the_operator_sets_how_pictures_are_prepared(tmp_path: Path) -> None:
    directory = write_vision_case("qwen2_vl", read_vision_case("qwen2_vl"), tmp_path)
    changed = RollingOptions(dtype="f32", mm_processor_kwargs='{"min_pixels": 3136, "max_pixels": 12544}').model_options
    sizes = []
    for options in (ModelOptions(weight_type="f32"), changed):
        tower = load_model(directory, options).tower
        assert tower is not None
        sizes.append(tower.processor.layout(460, 320, "auto").num_embeddings)
    assert sizes[1] <= 12544 // 784 < sizes[0]
    unknown = RollingOptions(dtype="f32", mm_processor_kwargs='{"most_pixels": 1}').model_options
    with pytest.raises(ModelError, match="most_pixels"):
        load_model(directory, unknown)


def test_a_checkpoint_that_does_not_say_how_pictures_are_prepared_serves_texts_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_case("idefics3_whole", read_vision_case("idefics3_whole"), tmp_path)
    with caplog.at_level(logging.WARNING):
        loaded = load_model(tmp_path, ModelOptions(weight_type="f32"))
    assert loaded.tower is None
    assert any("preprocessor_config.json" in departure for departure in loaded.facts.departures)


def test_a_tower_that_is_not_understood_is_refused_with_the_way_out(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    config["vision_config"]["new_idea"] = 3
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"new_idea.*limit_mm_per_prompt image=0 serves its texts alone"):
        load_model(directory, ModelOptions(weight_type="f32"))
    assert load_model(directory, ModelOptions(weight_type="f32", sees=False)).tower is None


def test_what_a_model_needs_covers_its_tower(directory: Path) -> None:
    seeing = memory_needs(directory, RollingOptions(dtype="f32")).weights
    blind = memory_needs(directory, RollingOptions(dtype="f32", limit_mm_per_prompt=0)).weights
    tensors = read_vision_case("idefics3_whole")["tensors"]
    tower = sum(4 * int(np.prod(shape)) for name, shape in tensors.items() if "vision" in name or "connector" in name)
    assert tower <= seeing - blind <= 1.1 * tower
