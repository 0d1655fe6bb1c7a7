"""InternVL in OpenGVLab's own layout, beside what all towers are tested for: what its files say, and what is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.engine.rolling.needs import memory_needs
from dragoman.engine.rolling.options import RollingOptions
from dragoman.models import ModelError, ModelOptions, load_model
from dragoman.models.families import read_model, read_picture_rules
from dragoman.models.vision.tower import Tower
from tests.support.family_checkpoint import read_case, write_case
from tests.support.family_logits import error_on_prompt
from tests.support.vision_checkpoint import draw, read_vision_case, write_vision_case
from tests.support.vision_model import embedded

CASE = "internvl_chat"
EXACT = ModelOptions(weight_type="f32")
KEY = "img_context_token_id"
ID = 310


def config_of(part: str = "", **changes: Any) -> dict[str, Any]:
    """The case's config.json with changed keys, of it or of an object in it."""
    config: dict[str, Any] = copy.deepcopy(read_vision_case(CASE)["config"])
    (config[part] if part else config).update(changes)
    return config


def written(directory: Path, *, without_id: bool = True, **changes: Any) -> Path:
    """The checkpoint, whose config.json does not say what its placeholder is."""
    config = {key: value for key, value in config_of(**changes).items() if not without_id or key != KEY}
    return write_vision_case(CASE, read_vision_case(CASE) | {"config": config}, directory)


def num_embeddings(directory: Path, changes: str = "{}") -> int:
    return read_picture_rules(directory, changes)[0].layout(230, 150, "auto").num_embeddings


# --- the placeholder --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("added_tokens.json", {"<IMG_CONTEXT>": ID, "<img>": 311}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9": {"content": "<s>"}, "310": {"content": "<IMG_CONTEXT>"}}}),
        ("tokenizer.json", {"added_tokens": [{"id": 311, "content": "<img>"}, {"id": ID, "content": "<IMG_CONTEXT>"}]}),
    ],
)  # fmt: skip
def test_the_placeholder_is_found_in_the_tokenizers_files(name: str, content: Any, tmp_path: Path) -> None:
    directory = written(tmp_path)
    (directory / name).write_text(json.dumps(content), encoding="utf-8")
    loaded = load_model(directory, EXACT)
    assert loaded.facts.pictures is not None
    assert loaded.facts.pictures.placeholder_id == ID
    assert read_picture_rules(directory)[1] == ID


def test_what_config_says_goes_first(tmp_path: Path) -> None:
    directory = written(tmp_path, without_id=False)
    (directory / "added_tokens.json").write_text('{"<IMG_CONTEXT>": 7}', encoding="utf-8")
    assert read_picture_rules(directory)[1] == ID


@pytest.mark.parametrize("content", ['{"<img>": 311}', '{"<IMG_CONTEXT>": "310"}', '{"<IMG_CONTEXT>": -1}'])
def test_without_it_texts_alone_are_served(content: str, tmp_path: Path) -> None:
    directory = written(tmp_path)
    (directory / "added_tokens.json").write_text(content, encoding="utf-8")
    told = r"say which token <IMG_CONTEXT> is; limit_mm_per_prompt image=0 serves its texts alone"
    with pytest.raises(ModelError, match=told):
        load_model(directory, EXACT)
    assert load_model(directory, ModelOptions(weight_type="f32", sees=False)).tower is None


def test_a_broken_file_of_the_tokenizer_is_named(tmp_path: Path) -> None:
    directory = written(tmp_path)
    (directory / "added_tokens.json").write_text("[", encoding="utf-8")
    with pytest.raises(ModelError, match=r"added_tokens\.json cannot be read as JSON"):
        load_model(directory, EXACT)


# --- how pictures are prepared ----------------------------------------------------------------------------------------


def test_pictures_are_prepared_the_same_where_no_file_describes_them(tmp_path: Path) -> None:
    described, bare = written(tmp_path / "a", without_id=False), written(tmp_path / "b", without_id=False)
    (bare / "preprocessor_config.json").unlink()
    picture = draw([230, 150, "waves", 8])
    tiles = [read_picture_rules(path)[0].inputs(picture, "auto")["pixel_values"] for path in (described, bare)]
    assert np.array_equal(tiles[0], tiles[1])
    tower = load_model(bare, EXACT).tower
    assert tower is not None
    assert len(embedded(tower, picture)) == 4 * len(tiles[0])


@pytest.mark.parametrize(
    ("config", "changes", "num_tiles"),
    [
        ({}, {}, 7),  # 3 x 2, and the whole
        ({}, {"max_dynamic_patch": 2}, 3),
        ({}, {"max_patches": 2}, 3),
        ({}, {"use_thumbnail": False}, 6),
        ({}, {"dynamic_image_size": False}, 1),
        ({"max_dynamic_patch": 2}, {}, 3),
        ({"use_thumbnail": False}, {}, 6),
        ({"dynamic_image_size": False}, {}, 1),
        ({"min_dynamic_patch": 7}, {}, 13),
    ],
)
def test_config_says_how_many_tiles_and_the_operator_may_change_it(
    config: dict[str, Any], changes: dict[str, Any], num_tiles: int, tmp_path: Path
) -> None:
    directory = written(tmp_path, without_id=False, **config)
    processor, _ = read_picture_rules(directory, json.dumps(changes))
    assert processor.layout(230, 150, "auto").num_embeddings == 4 * num_tiles
    assert len(processor.inputs(draw([230, 150, "noise", 1]), "auto")["pixel_values"]) == num_tiles


def test_the_marker_is_what_people_write_and_the_tokens_are_the_layouts(tmp_path: Path) -> None:
    processor, _ = read_picture_rules(written(tmp_path, without_id=False))
    assert processor.marker == "<image>"
    assert processor.layout(9, 9, "low").text == "<img>" + 4 * "<IMG_CONTEXT>" + "</img>"


# --- towers and decoders ----------------------------------------------------------------------------------------------


def test_the_norms_of_the_larger_tower_are_followed(tmp_path: Path) -> None:
    """As the same numbers in the layout of transformers, which ends with one norm more if it does not average."""
    usual = read_vision_case("internvl_norms")
    usual["config"]["vision_config"]["use_mean_pooling"] = True
    usual["tensors"] = {name: shape for name, shape in usual["tensors"].items() if ".layernorm." not in name}
    own = read_vision_case(CASE) | {"made_of": "internvl_norms", "source": usual, "preprocessor": usual["preprocessor"]}
    own["config"]["vision_config"] |= {"norm_type": "rms_norm", "qkv_bias": False, "qk_normalization": True}
    towers: list[Tower] = []
    for name, case in (("internvl_norms", usual), (CASE, own)):
        tower = load_model(write_vision_case(name, case, tmp_path / name), EXACT).tower
        assert tower is not None
        towers.append(tower)
    for picture in (draw([230, 150, "waves", 8]), draw([1, 200, "noise", 3])):
        found = [embedded(tower, picture) for tower in towers]
        assert np.array_equal(found[0], found[1])
        assert np.std(found[0]) > 0.1


@pytest.mark.parametrize("name", ["llama_default", "phi3", "qwen2", "qwen3", "qwen3_moe", "internlm2"])
def test_the_decoders_of_the_layout_compute_as_by_themselves(name: str, tmp_path: Path) -> None:
    decoder = read_case(name)
    case = {
        "config": {"architectures": ["InternVLChatModel"], "llm_config": decoder["config"], "vision_config": {}},
        "made_of": name,
        "source": decoder,
        "layouts": ["below_language_model"],
    }
    loaded = load_model(write_case(name, case, tmp_path), ModelOptions(weight_type="f32", sees=False))
    assert error_on_prompt(loaded, name, 90) < 1e-4


def test_what_a_model_needs_covers_its_tower(tmp_path: Path) -> None:
    directory = written(tmp_path, without_id=False)
    seeing = memory_needs(directory, RollingOptions(dtype="f32")).weights
    blind = memory_needs(directory, RollingOptions(dtype="f32", limit_mm_per_prompt=0)).weights
    shapes = read_vision_case(CASE)["tensors"]
    tower = sum(
        4 * int(np.prod(shape)) for name, shape in shapes.items() if name.startswith(("vision_model.", "mlp1."))
    )
    assert tower <= seeing - blind <= 1.1 * tower


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("", {"ps_version": "v1"}, 'ps_version is "v1", allowed: one of v2'),
        ("", {"ps_version": None}, "ps_version is null, allowed: one of v2"),
        ("", {"select_layer": -4}, "select_layer is -4, allowed: -1"),
        ("", {"pad2square": True}, "pad2square is true, allowed: false"),
        ("", {"use_llm_lora": 16}, "use_llm_lora is 16, allowed: 0"),
        ("", {"force_image_size": 56}, "force_image_size is 56, allowed: 28, as vision_config image_size"),
        ("", {"downsample_ratio": 0.3}, "downsample_ratio is 0.3, allowed: one over a divisor of the 4"),
        ("", {"max_dynamic_patch": 0}, "config.json max_dynamic_patch is 0, allowed: an integer of at least 1"),
        ("", {"min_dynamic_patch": 13}, "config.json min_dynamic_patch is 13, allowed: at most max_dynamic_patch, 12"),
        ("", {"use_thumbnail": 1}, "config.json use_thumbnail is 1, allowed: true or false"),
        ("", {"new_idea": 3}, r"for this architecture: new_idea \(3\)"),
        ("", {KEY: 320}, "token 320, allowed: one of the vocabulary's 320"),
        ("", {"llm_config": None}, "llm_config is null, allowed: an object"),
        ("vision_config", {"use_moe": True}, "use_moe is true, allowed: false"),
        ("vision_config", {"qkv_bias": 1}, "vision_config qkv_bias is 1, allowed: true or false"),
        ("llm_config", {"architectures": ["Gemma2ForCausalLM"]}, r'\["Gemma2ForCausalLM"\] are not supported, allowed'),
        ("llm_config", {"architectures": None}, "llm_config architectures null are not supported"),
        ("llm_config", {"new_idea": 3}, r"llm_config has unknown keys .* new_idea \(3\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_by_key(part: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_model(config_of(part, **changes), sees=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 56}, "size is 56, allowed: 28, as the tower takes tiles"),
        ({"resample": 2}, r"resample is 2, allowed: 3 \(bicubic\)"),
        ({"image_processor_type": "SiglipImageProcessor"}, "allowed: one of CLIPImageProcessor"),
        ({"max_dynamic_patch": 10**6}, "max_dynamic_patch is 1000000, allowed: at most 1000"),
        ({"max_patches": 6, "max_dynamic_patch": 4}, "max_dynamic_patch is 4, allowed: 6, as in max_patches"),
        ({"sharpen": True}, r"for this architecture: sharpen \(true\)"),
    ],
)
def test_pictures_that_would_be_prepared_otherwise_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        num_embeddings(written(tmp_path, without_id=False), json.dumps(changes))
