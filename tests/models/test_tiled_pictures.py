"""Families that cut pictures into tiles: what detail does, how tokens are named, and what is refused by name."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from dragoman.models import ModelError, ModelOptions
from dragoman.models.config import Config
from dragoman.models.families import read_model
from dragoman.models.profile import kernel_profile
from dragoman.models.sources.base import StoredTensor
from dragoman.models.sources.safetensors import Checkpoint
from dragoman.models.storage.constants import WeightStorage
from dragoman.models.storage.row_parts import RowParts
from dragoman.models.vision.base import PictureProcessor, VisionFamily
from dragoman.models.vision.tower import Tower
from dragoman.models.weights import Weights
from tests.support.odd_values import ODD_VALUES
from tests.support.vision_checkpoint import draw, read_vision_case, write_vision_case
from tests.support.vision_model import SeeingModel, embedded

CASES = ("idefics3", "smolvlm", "internvl", "internvl_norms", "internvl_chat")
PICTURE = draw([230, 150, "noise", 1])


def vision_of(name: str, part: str = "", **changes: Any) -> VisionFamily:
    """The seeing part of a recorded case with changed keys, of config.json or of an object in it."""
    config = copy.deepcopy(read_vision_case(name)["config"])
    (config[part] if part else config).update(changes)
    vision = read_model(config, sees=True).vision
    assert vision is not None
    return vision


def processor_of(name: str, **changes: Any) -> PictureProcessor:
    """A recorded case's processor with changed keys of preprocessor_config.json."""
    described = read_vision_case(name)["preprocessor"] | changes
    return vision_of(name).processor(Config(described, "preprocessor_config.json"))


# --- what a picture becomes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("idefics3", "<fake_token_around_image><global-img>" + 4 * "<image>" + "<fake_token_around_image>"),
        ("internvl", "<img>" + 4 * "<IMG_CONTEXT>" + "</img>"),
    ],
)
def test_with_low_detail_a_picture_is_one_tile(name: str, text: str) -> None:
    processor = processor_of(name)
    layout = processor.layout(PICTURE.width, PICTURE.height, "low")
    assert (layout.text, layout.num_embeddings) == (text, 4)
    assert processor.inputs(PICTURE, "low")["pixel_values"].shape == (1, 3, 28, 28)


@pytest.mark.parametrize("name", CASES)
def test_high_detail_is_what_the_file_says(name: str) -> None:
    processor = processor_of(name)
    assert processor.layout(230, 150, "high") == processor.layout(230, 150, "auto")
    assert processor.layout(230, 150, "high").num_embeddings > 4
    tiles = processor.inputs(PICTURE, "high")["pixel_values"]
    assert np.array_equal(tiles, processor.inputs(PICTURE, "auto")["pixel_values"])
    assert len(tiles) * 4 == processor.layout(230, 150, "high").num_embeddings


def test_without_splitting_detail_changes_nothing() -> None:
    processor = processor_of("idefics3", do_image_splitting=False)
    assert processor.layout(230, 150, "high") == processor.layout(230, 150, "low")


def test_a_picture_that_fits_one_tile_is_not_cut() -> None:
    processor = processor_of("idefics3", size={"longest_edge": 28})
    assert processor.layout(230, 150, "high") == processor.layout(230, 150, "low")


def test_the_texts_of_special_tokens_can_be_said() -> None:
    processor = processor_of("idefics3", image_token="<p>", fake_image_token="<f>", global_image_token="<g>")
    assert processor.marker == "<p>"
    assert processor.layout(9, 9, "low").text == "<f><g><p><p><p><p><f>"
    processor = processor_of("internvl", context_image_token="<p>", start_image_token="<a>", end_image_token="<b>")
    assert processor.marker == "<p>"
    assert processor.layout(9, 9, "low").text == "<a><p><p><p><p><b>"


# --- checkpoints ------------------------------------------------------------------------------------------------------


class Renamed:
    """A checkpoint whose tensors have other names: the same below "model."."""

    def __init__(self, source: Checkpoint, prefixes: tuple[str, ...]) -> None:
        self._source = source
        self._names = {f"model.{name}" if name.startswith(prefixes) else name: name for name in source}

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        return self._source.tensor(self._names[name], shape)


def test_internvl_is_found_below_model_too(tmp_path: Path) -> None:
    usual = SeeingModel("internvl", tmp_path / "usual", ModelOptions(weight_type="f32"))
    directory = write_vision_case("internvl", usual.case, tmp_path / "below")
    profile = kernel_profile(ModelOptions(weight_type="f32"))
    with Checkpoint(directory) as checkpoint, RowParts() as parts:
        source = Renamed(checkpoint, ("vision_tower.", "multi_modal_projector."))
        graphs = usual.vision.build(Weights(source, WeightStorage(profile.weights, parts)))
        parts.finish()
        compiled = [ov.Core().compile_model(graph, "CPU", dict(profile.properties)) for graph in graphs]
    tower = Tower(compiled, [], usual.vision.facts, usual.processor)
    assert np.array_equal(embedded(tower, PICTURE), usual.embed(PICTURE))


@pytest.mark.parametrize(
    ("name", "extra"),
    [("idefics3", "model.vision_model.encoder.layers.2.mlp.fc1.bias"), ("internvl", "vision_tower.head.weight")],
)
def test_a_tensor_that_no_tower_knows_is_refused_by_name(name: str, extra: str, tmp_path: Path) -> None:
    case = read_vision_case(name)
    directory = write_vision_case(name, case | {"extra_tensors": {extra: [8]}}, tmp_path)
    with Checkpoint(directory) as checkpoint, RowParts() as parts:
        storage = WeightStorage(kernel_profile(ModelOptions()).weights, parts)
        with pytest.raises(ModelError, match=extra):
            vision_of(name).build(Weights(checkpoint, storage))


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "part", "changes", "message"),
    [
        ("idefics3", "", {"scale_factor": 3}, "scale_factor is 3, allowed: a divisor of the 4 patches"),
        ("idefics3", "vision_config", {"pooling": "mean"}, r"vision_config has unknown keys .* pooling"),
        ("idefics3", "vision_config", {"num_attention_heads": 5}, "num_attention_heads is 5, allowed: a divisor"),
        ("idefics3", "vision_config", {"patch_size": 29}, "image_size is 28, allowed: at least patch_size, 29"),
        ("idefics3", "vision_config", {"num_channels": 1}, "num_channels is 1, allowed: 3"),
        ("internvl", "", {"downsample_ratio": 0.3}, "downsample_ratio is 0.3, allowed: one over a divisor of the 4"),
        ("internvl", "", {"image_seq_length": 16}, "image_seq_length is 16, allowed: 4, as vision_config"),
        ("internvl", "", {"vision_feature_layer": -2}, "vision_feature_layer is -2, allowed: -1"),
        ("internvl", "", {"vision_feature_select_strategy": "full"}, 'is "full", allowed: "default"'),
        ("internvl", "vision_config", {"norm_type": "batch"}, 'norm_type is "batch", allowed: one of layer_norm'),
        ("internvl", "vision_config", {"image_size": [28, 56]}, r"image_size is \[28, 56\], allowed: a whole number"),
        ("internvl", "vision_config", {"pooling": "mean"}, r"vision_config has unknown keys .* pooling"),
    ],
)
def test_a_tower_that_would_be_computed_otherwise_is_refused(
    name: str, part: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        vision_of(name, part, **changes)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("idefics3", {"image_seq_len": 9}, "image_seq_len is 9, allowed: 4"),
        ("idefics3", {"max_image_size": {"longest_edge": 56}}, 'allowed: {"longest_edge": 28}, as image_size'),
        ("idefics3", {"size": {"height": 28, "width": 28}}, "size has no longest_edge"),
        ("idefics3", {"do_resize": False}, "do_resize is false, allowed: true"),
        ("idefics3", {"image_processor_type": "CLIPImageProcessor"}, "allowed: one of Idefics3ImageProcessor"),
        ("idefics3", {"image_token": {"content": "<image>"}}, "image_token is .*, allowed: a text"),
        ("idefics3", {"sharpen": 2}, r"unknown keys .* sharpen \(2\)"),
        ("internvl", {"size": {"height": 56, "width": 56}}, 'allowed: {"height": 28, "width": 28}'),
        ("internvl", {"size": {"shortest_edge": 28}}, 'allowed: {"height": 28, "width": 28}'),
        ("internvl", {"resample": 2}, r"resample is 2, allowed: 3 \(bicubic\)"),
        ("internvl", {"min_patches": 13}, "min_patches is 13, allowed: at most max_patches, 12"),
        ("internvl", {"max_patches": 10**6}, "max_patches is 1000000, allowed: at most 1000"),
        ("internvl", {"sharpen": 2}, r"unknown keys .* sharpen \(2\)"),
    ],
)
def test_pictures_that_would_be_prepared_otherwise_are_refused(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        processor_of(name, **changes)


@pytest.mark.parametrize("name", CASES)
def test_an_odd_value_is_refused_or_read_but_never_fails_otherwise(name: str) -> None:
    case = read_vision_case(name)
    for key in case["preprocessor"]:
        for value in ODD_VALUES:
            with suppress(ModelError):  # anything else fails the test
                assert processor_of(name, **{key: value}).marker, (key, value)
    for part in ("", "vision_config"):
        keys = case["config"][part] if part else {"image_token_id", "scale_factor", "downsample_ratio", "vision_config"}
        for key in keys:
            for value in ODD_VALUES:
                with suppress(ModelError):
                    assert vision_of(name, part, **{key: value}).facts, (part, key, value)
