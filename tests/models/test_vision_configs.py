"""Towers read every key of their configs, refuse what they cannot follow, and miss no tensor; what a client can vary."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dragoman.models import ModelError, ModelOptions
from dragoman.models.config import Config
from dragoman.models.families import read_model
from dragoman.models.vision.base import PictureProcessor
from dragoman.models.vision.described import read_described
from tests.support.odd_values import ODD_VALUES
from tests.support.tables import table
from tests.support.vision_checkpoint import draw, read_vision_case, vision_case_names
from tests.support.vision_model import SeeingModel

NAMES = vision_case_names()


def processor_of(name: str, config: dict[str, Any], described: dict[str, Any]) -> PictureProcessor:
    """Of a recorded case with changed keys; keys of vision_config begin with "vision_config."."""
    case = read_vision_case(name)
    changed = copy.deepcopy(case["config"])
    for key, value in config.items():
        part, _, inner = key.rpartition(".")
        (changed[part] if part else changed)[inner] = value
    vision = read_model(changed, sees=True).vision
    assert vision is not None
    return vision.processor(Config({**case["preprocessor"], **described}, "preprocessor_config.json"))


@table("name", NAMES)
def test_a_key_that_nobody_knows_is_refused_by_name(name: str) -> None:
    with pytest.raises(ModelError, match=r"config.json vision_config has unknown keys .*: gain \(2\)"):
        processor_of(name, {"vision_config.gain": 2}, {})
    with pytest.raises(ModelError, match=r"preprocessor_config.json has unknown keys .*: sharpen \(true\)"):
        processor_of(name, {}, {"sharpen": True})


@table("name", NAMES)
def test_an_odd_value_is_refused_or_changes_nothing_but_never_fails_otherwise(name: str) -> None:
    case = read_vision_case(name)
    keys = [key for key, value in case["config"].items() if not isinstance(value, dict)]
    keys += [f"vision_config.{key}" for key in case["config"]["vision_config"]]
    for value in ODD_VALUES:
        for key in keys:
            with suppress(ModelError):  # anything else fails the test
                processor_of(name, {key: value}, {})
        for key in case["preprocessor"]:
            with suppress(ModelError):
                processor_of(name, {}, {key: value})


@table("name", NAMES)
def test_a_missing_tensor_and_one_too_many_are_refused_by_name(name: str, tmp_path: Path) -> None:
    model = SeeingModel(name, tmp_path, ModelOptions(weight_type="f32"))
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    ours = [tensor for tensor in tensors if tensor.startswith(("vision_", "model.vis", "visual.", "model.visual."))]
    lost = next(tensor for tensor in ours if tensor.endswith("weight") and ".0." in tensor)
    save_file({key: value for key, value in tensors.items() if key != lost}, path)
    picture = model.picture(next(iter(model.case["pictures"])))
    with pytest.raises(ModelError, match=lost):
        model.embed(picture)
    extra = lost.rpartition(".")[0] + ".gain"
    save_file({**tensors, extra: np.zeros(3, dtype=np.float32)}, path)
    with pytest.raises(ModelError, match=f"does not know: {extra}"):
        model.embed(picture)


@pytest.mark.parametrize(
    ("name", "config", "described", "words"),
    [
        (
            "llava",
            {"vision_config.model_type": "pixtral"},
            {},
            'model_type is "pixtral", allowed: one of clip_vision_model',
        ),
        ("llava", {"vision_config.num_channels": 1}, {}, "num_channels is 1, allowed: 3"),
        ("llava", {"vision_config.num_attention_heads": 5}, {}, "allowed: a divisor of hidden_size, 32"),
        ("llava", {"vision_feature_layer": -5}, {}, "allowed: a number from -4 to 3, or a list of such"),
        (
            "llava",
            {"vision_feature_layer": [0, True]},
            {},
            "vision_feature_layer is .*, allowed: a number from -4 to 3",
        ),
        ("llava", {"vision_feature_select_strategy": "cls"}, {}, "allowed: one of default, full"),
        ("llava", {"image_token_index": 320}, {}, "token 320, allowed: one of the vocabulary's 320"),
        ("llava", {}, {"crop_size": 56}, "crop_size is 56, allowed: a size that makes every picture 28 x 28 pixels"),
        ("llava", {}, {"do_center_crop": False}, "allowed: a size that makes every picture 28 x 28 pixels"),
        ("llava", {}, {"size": {"longest_edge": 28}}, 'size is .*, allowed: a number, {"shortest_edge"} or'),
        ("llava", {}, {"resample": 9}, r"resample is 9, allowed: .*3 \(bicubic\)"),
        ("llava", {}, {"image_std": [1, 0, 1]}, "image_std is .*, allowed: numbers other than 0"),
        ("llava", {}, {"image_mean": [0.5]}, "image_mean is .*, allowed: a list of 3 numbers"),
        ("llava", {}, {"image_processor_type": "ViTImageProcessor"}, "allowed: one of CLIPImageProcessor"),
        ("llava", {}, {"data_format": "channels_last"}, 'allowed: "channels_first"'),
        ("llava_next", {"vision_feature_select_strategy": "full"}, {}, 'allowed: "default", as tiles are laid out'),
        ("llava_next", {"image_grid_pinpoints": [[28, 30]]}, {}, "allowed: a list of pairs of multiples of 28"),
        (
            "llava_next",
            {},
            {"image_grid_pinpoints": [[28, 56]]},
            "image_grid_pinpoints is .*, allowed: what config.json has",
        ),
        (
            "llava_next",
            {"use_image_newline_parameter": False},
            {},
            "use_image_newline_parameter is false, allowed: true",
        ),
        ("llava_onevision", {"vision_aspect_ratio": "anyres"}, {}, 'allowed: "anyres_max_" and a number'),
        ("llava_onevision", {}, {"vision_aspect_ratio": "anyres_max_9"}, 'allowed: "anyres_max_2"'),
        ("llava_onevision", {}, {"num_image_tokens": 729}, "num_image_tokens is 729, allowed: 16"),
        ("gemma3", {"mm_tokens_per_image": 8}, {}, "mm_tokens_per_image is 8, allowed: a square number"),
        ("gemma3", {"mm_tokens_per_image": 49}, {}, "of which 6 x 6 patches can be pooled"),
        ("gemma3", {}, {"do_pan_and_scan": True}, "do_pan_and_scan is true, allowed: false"),
        ("gemma3", {}, {"image_seq_length": 256}, "image_seq_length is 256, allowed: 9"),
        ("gemma4", {"vision_config.num_key_value_heads": 1}, {}, "num_key_value_heads is 1, allowed: 2"),
        ("gemma4", {"vision_config.head_dim": 18}, {}, "head_dim is 18, allowed: a multiple of 4"),
        ("gemma4", {"vision_config.position_embedding_size": 139}, {}, "max_soft_tokens is 70, allowed: at most 69"),
        ("gemma4", {"text_config.sliding_window": 69}, {}, "allowed: at most sliding_window of config.json, 69"),
        ("gemma4", {}, {"max_soft_tokens": 71}, "max_soft_tokens is 71, allowed: one of 70, 140, 280, 560, 1120"),
        ("gemma4", {}, {"pooling_kernel_size": 3}, "pooling_kernel_size is 3, allowed: 2"),
        ("lfm2_vl", {"vision_feature_layer": -2}, {}, "vision_feature_layer is -2, allowed: -1"),
        ("lfm2_vl", {"vision_config.num_patches": 35}, {}, "num_patches is 35, allowed: a square number"),
        ("lfm2_vl", {}, {"encoder_patch_size": 16}, "encoder_patch_size is 16, allowed: 4"),
        ("lfm2_vl", {}, {"tile_size": 36}, "tile_size is 36, allowed: a multiple of 8"),
        ("lfm2_vl", {}, {"min_tiles": 1}, "min_tiles is 1, allowed: at least 2, or max_tiles 1"),
        ("lfm2_vl", {}, {"max_image_tokens": 3}, "max_image_tokens is 3, allowed: at least min_image_tokens, 4"),
        ("mistral3", {"vision_config.head_dim": 32}, {}, "head_dim is 32, allowed: 16"),
        ("mistral3", {"vision_config.rope_parameters": {"rope_type": "yarn"}}, {}, "allowed: one of axial, default"),
        ("mistral3", {"vision_feature_layer": [-1, -2]}, {}, "allowed: a number from -3 to 2"),
        ("mistral3", {}, {"patch_size": 14}, "patch_size is 14, allowed: 7, as config.json says"),
        ("mistral3", {}, {"spatial_merge_size": 1}, "spatial_merge_size is 1, allowed: 2"),
        ("mistral3", {}, {"size": {"shortest_edge": 9}}, 'size is .*, allowed: {"longest_edge"} or'),
    ],
)
def test_what_cannot_be_followed_is_refused(
    name: str, config: dict[str, Any], described: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        processor_of(name, config, described)


@pytest.mark.parametrize(
    "described",
    [
        {"size": 28, "crop_size": 28, "image_processor_type": "CLIPImageProcessorFast"},
        {"size": [28, 28], "do_center_crop": False} | {"feature_extractor_type": "CLIPFeatureExtractor"},
        {"do_normalize": False, "image_mean": 0.0},
        {"do_rescale": False, "image_std": 0.25},
        {"do_resize": False},
        {"size": 28, "default_to_square": True, "do_center_crop": False, "do_pad": False, "crop_size": None},
    ],
)
def test_the_forms_of_a_description_that_people_have_are_understood(described: dict[str, Any]) -> None:
    picture = draw([40, 28, "waves", 1])
    pixels = processor_of("llava", {}, described).inputs(picture, "auto")["pixel_values"]
    assert pixels.shape == (1, 3, 28, 28)
    assert pixels.dtype == np.float32
    if "do_normalize" in described:
        assert 0 <= pixels.min() < 0.1 < 0.9 < pixels.max() <= 1
    if "do_rescale" in described:
        assert pixels.max() > 900  # (255 - mean) / 0.25
    if "do_resize" in described:  # the middle of what it was
        whole = np.frombuffer(picture.rgb, dtype=np.uint8).reshape(28, 40, 3)[:, 6:34]
        np.testing.assert_allclose(pixels[0, 0], (whole[..., 0] / 255 - 0.48145466) / 0.26862954, atol=1e-5)


def test_a_picture_smaller_than_what_is_cut_out_lies_in_the_middle_of_black() -> None:
    plain = {"do_resize": False, "do_normalize": False, "do_rescale": False}
    pixels = processor_of("llava", {}, plain).inputs(draw([5, 40, "noise", 1]), "auto")["pixel_values"][0]
    assert not pixels[:, :, :12].any()
    assert not pixels[:, :, 17:].any()
    assert pixels[:, :, 12:17].all(axis=0).any()


def test_another_text_of_the_placeholder_is_taken_from_the_file() -> None:
    processor = processor_of("llava", {}, {"image_token": "<picture>"})
    assert processor.marker == "<picture>"
    assert processor.layout(3, 3, "auto").text == "<picture>" * 16


@pytest.mark.parametrize(("name", "becomes"), [("llava", "28 x 5600000"), ("llava_padded", "200000 x 200000")])
def test_a_strip_that_would_fill_the_memory_is_refused(name: str, becomes: str) -> None:
    with pytest.raises(ValueError, match=f"a picture of 1 x 200000 pixels becomes one of {becomes}, allowed"):
        processor_of(name, {}, {}).layout(1, 200_000, "low")


@pytest.mark.parametrize("name", ["llava_next", "llava_onevision"])
def test_low_detail_is_the_picture_as_a_whole_and_a_newline(name: str, tmp_path: Path) -> None:
    model = SeeingModel(name, tmp_path, ModelOptions(weight_type="f32"))
    side = model.vision.transformer.side  # type: ignore[attr-defined]
    square = draw([60, 60, "noise", 1])
    assert model.processor.layout(60, 60, "low").num_embeddings == side**2 + 1
    low, high = model.embed(square, "low"), model.embed(square, "high")
    assert len(low) == side**2 + 1 < len(high) == model.processor.layout(60, 60, "high").num_embeddings
    np.testing.assert_allclose(low[:-1], high[: side**2], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(low[-1], high[-1], rtol=1e-6)  # each row of tiles ends so
    assert np.array_equal(model.embed(square, "auto"), high)


def test_a_picture_of_its_own_size_is_made_to_fit_and_each_row_of_it_ends() -> None:
    large = {"size": {"longest_edge": 1540}}
    processor = processor_of("mistral3", {}, large)
    row = "[IMG]" * 74  # 1,024 pixels in squares of 14
    assert processor.layout(1024, 28, "auto").text == f"{row}[IMG_BREAK]{row}[IMG_END]"
    assert processor.layout(1024, 28, "low").text == "[IMG]" * 37 + "[IMG_END]"
    assert processor.layout(3080, 1540, "high").num_embeddings == 110 * 55
    higher = processor_of("mistral3", {}, {"size": {"height": 140, "width": 28}})
    assert higher.layout(28, 140, "auto").num_embeddings == 2 * 10
    with pytest.raises(ValueError, match="a picture of 1541 x 1 pixels is too long for this model: a side shrinks"):
        processor.layout(1541, 1, "auto")


def test_a_picture_is_cut_where_it_is_large_and_the_file_wants_it() -> None:
    text = processor_of("lfm2_vl", {}, {}).layout(90, 45, "high").text
    tiles = "".join(f"<|img_row_1_col_{column}|>" + "<image>" * 16 for column in (1, 2))
    whole = "<image>" * 10  # 40 x 16 pixels in squares of 8
    assert text == f"<|image_start|>{tiles}<|img_thumbnail|>{whole}<|image_end|>"
    for plain in ({"do_image_splitting": False}, {"min_tiles": 1, "max_tiles": 1}):
        assert processor_of("lfm2_vl", {}, plain).layout(90, 45, "high").num_embeddings == 10
    assert processor_of("lfm2_vl", {}, {}).layout(90, 45, "low").text == f"<|image_start|>{whole}<|image_end|>"
    bare = processor_of("lfm2_vl", {}, {"use_image_special_tokens": False, "use_thumbnail": False})
    assert bare.layout(90, 45, "auto").text == "<image>" * 32
    assert len(bare.inputs(draw([90, 45, "noise", 1]), "auto")["pixel_values"]) == 2 * 64
    with pytest.raises(ValueError, match="a picture of 1 x 65535 pixels is too long for this model"):
        bare.layout(1, 65_535, "auto")


def test_a_picture_fills_what_embeddings_it_may_have() -> None:
    sizes = {"vision_config.position_embedding_size": 560, "text_config.sliding_window": 280}
    processor = processor_of("gemma4", sizes, {"max_soft_tokens": 280})
    assert processor.layout(40, 56, "auto").text == "<|image>" + "<|image|>" * 266 + "<image|>"  # 14 x 19
    assert processor.layout(40, 56, "low").num_embeddings == 7 * 9
    assert processor.layout(1, 9_000, "high").num_embeddings == 280


def test_layers_behind_the_one_that_is_asked_for_are_left_out(tmp_path: Path) -> None:
    found = []
    for layer in (-1, -2):
        model = SeeingModel("mistral3", tmp_path, ModelOptions(weight_type="f32"))
        model.case["config"]["vision_feature_layer"] = layer
        found.append(model.embed(model.picture("grey")))
    assert found[0].shape == found[1].shape
    assert not np.allclose(found[0], found[1], atol=0.01)


@pytest.mark.parametrize("name", ["llava", "gemma3"])
def test_detail_changes_nothing_where_the_model_leaves_no_choice(name: str) -> None:
    processor, picture = processor_of(name, {}, {}), draw([60, 40, "noise", 1])
    assert processor.layout(60, 40, "low") == processor.layout(60, 40, "high")
    low, high = (processor.inputs(picture, detail)["pixel_values"] for detail in ("low", "high"))
    assert np.array_equal(low, high)


def test_both_files_that_describe_pictures_are_read(tmp_path: Path) -> None:
    whole = read_vision_case("llava")["preprocessor"]
    newer = {"image_processor": whole, "processor_class": "LlavaProcessor", "image_token": "<picture>", "patch_size": 7}
    with pytest.raises(ModelError, match=r"preprocessor_config\.json does not exist"):
        read_described(tmp_path)
    (tmp_path / "processor_config.json").write_text(json.dumps(newer))
    described = read_described(tmp_path)
    assert (described.value("size"), described.value("image_token")) == (whole["size"], "<picture>")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(whole | {"size": 29}))
    described = read_described(tmp_path)
    assert (described.value("size"), described.value("image_token")) == (29, "<picture>")
    (tmp_path / "processor_config.json").write_text('{"image_processor": 3}')
    with pytest.raises(ModelError, match="image_processor is no object"):
        read_described(tmp_path)
