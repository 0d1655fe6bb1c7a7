"""Qwen's towers: what their files may say, how large pictures become, and how their embeddings lie in a prompt."""

from __future__ import annotations

import copy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.models import ModelError, ModelOptions
from dragoman.models.config import Config
from dragoman.models.families import read_model
from dragoman.models.storage.constants import WeightType
from dragoman.models.vision.base import PictureProcessor
from tests.support import tiers
from tests.support.vision_checkpoint import draw, prompt_pieces, read_vision_case, vision_case_names
from tests.support.vision_model import SeeingModel

NAMES = [name for name in vision_case_names() if name.startswith("qwen")]
UNIT = {"qwen2_vl": 28, "qwen2_5_vl": 28, "qwen3_vl": 32}  # pixels of an embedding's side


def processor(name: str, config: dict[str, Any] | None = None, **changes: Any) -> PictureProcessor:
    """That of a case, with changed keys of preprocessor_config.json."""
    case = read_vision_case(name)
    vision = read_model(config or case["config"], sees=True).vision
    assert vision is not None
    return vision.processor(Config({**case["preprocessor"], **changes}, "preprocessor_config.json"))


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    """A case's config.json with changed keys of its vision_config; None = without the key."""
    config: dict[str, Any] = copy.deepcopy(read_vision_case(name)["config"])
    changed = config["vision_config"] | changes
    config["vision_config"] = {key: value for key, value in changed.items() if value is not None}
    return config


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_layouts_grid_is_where_the_reference_places_the_embeddings(name: str) -> None:
    case, reference = read_vision_case(name), np.load(Path(__file__).parent / "vision" / f"{name}.npz")
    prepare = processor(name)
    for index in range(len(case["prompts"])):
        positions = reference[f"positions_{index}"].astype(int)
        at = np.flatnonzero(reference[f"token_ids_{index}"] == case["config"]["image_token_id"])
        for kind, piece in prompt_pieces(name, case, index):
            if kind == "picture":
                picture = draw(case["pictures"][piece])
                layout = prepare.layout(picture.width, picture.height, "auto")
                rows, columns = layout.grid
                span, at = at[: rows * columns], at[rows * columns :]
                expected = np.stack(np.unravel_index(np.arange(rows * columns), layout.grid))
                assert np.array_equal(positions[1:, span] - positions[1:, span[:1]], expected), piece
                assert len(set(positions[0, span])) == 1
        assert not at.size


@pytest.mark.parametrize(("name", "unit"), UNIT.items())
def test_limits_bound_the_embeddings(name: str, unit: int) -> None:
    wide = processor(name, min_pixels=4 * unit**2, max_pixels=100 * unit**2)
    assert wide.layout(1, 1, "auto").num_embeddings == 4
    assert wide.layout(5 * unit, 7 * unit, "auto").grid == (7, 5)
    assert 80 <= wide.layout(4000, 4000, "high").num_embeddings <= 100


@pytest.mark.parametrize(("name", "unit"), UNIT.items())
def test_detail_low_is_at_most_512_pixels_square_but_no_fewer_than_the_fewest(name: str, unit: int) -> None:
    usual = processor(name, min_pixels=4 * unit**2, max_pixels=2000 * unit**2)
    low, high = (usual.layout(2000, 2000, detail) for detail in ("low", "high"))
    assert low.num_embeddings * unit**2 <= 512 * 512 < high.num_embeddings * unit**2
    assert usual.layout(3 * unit, 3 * unit, "low") == usual.layout(3 * unit, 3 * unit, "auto")
    picture = draw([700, 900, "waves", 1])
    assert len(usual.inputs(picture, "low")["pixel_values"]) == 4 * usual.layout(700, 900, "low").num_embeddings
    close = processor(name, min_pixels=1000 * unit**2, max_pixels=2000 * unit**2)
    assert close.layout(2000, 2000, "low").num_embeddings >= 900


def test_a_picture_longer_than_200_times_its_width_is_refused() -> None:
    prepare = processor("qwen2_vl")
    assert prepare.layout(1, 200, "auto").grid == (29, 1)
    for width, height in ((1, 201), (402, 2)):
        with pytest.raises(ValueError, match=f"a picture of {width} x {height} pixels is too long"):
            prepare.layout(width, height, "auto")


def test_limits_may_stand_in_size_under_either_name() -> None:
    usual = processor("qwen2_vl", min_pixels=None, max_pixels=None, size={"shortest_edge": 3136, "longest_edge": 47040})
    older = processor("qwen2_vl", min_pixels=None, max_pixels=None, size={"min_pixels": 3136, "max_pixels": 47040})
    for size in ((1, 1), (460, 320), (97, 131)):
        expected = processor("qwen2_vl").layout(*size, "auto")
        assert usual.layout(*size, "auto") == older.layout(*size, "auto") == expected


# --- what files may say -----------------------------------------------------------------------------------------------

PREPROCESSOR_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"patch_size": 16}, "patch_size is 16, allowed: 14"),
    ({"merge_size": 1}, "merge_size is 1, allowed: 2"),
    ({"temporal_patch_size": 1}, "temporal_patch_size is 1, allowed: 2"),
    ({"do_resize": False}, "do_resize is false, allowed: true"),
    ({"do_center_crop": True}, "do_center_crop is true, allowed: false"),
    ({"image_processor_type": "ViTImageProcessor"}, 'image_processor_type is "ViTImageProcessor", allowed: one of'),
    ({"max_pixels": 3000}, "max_pixels is 3000, allowed: at least the fewest, 3136"),
    ({"max_pixels": None, "size": {"longest_edge": 9}}, "preprocessor_config.json size has no shortest_edge"),
    ({"size": {"shortest_edge": 1, "longest_edge": 2, "odd": 3}}, r"size has unknown keys .* odd \(3\)"),
    ({"resample": 9}, "resample is 9"),
]


@pytest.mark.parametrize(("changes", "message"), PREPROCESSOR_REFUSALS)
def test_preprocessor_configs_that_cannot_be_followed_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        processor("qwen2_vl", **changes)


VISION_REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("qwen2_vl", {"hidden_size": 32}, "vision_config hidden_size is 32, allowed: the decoder's hidden_size, 64"),
    ("qwen2_vl", {"num_heads": 16}, r"embed_dim is 32, allowed: a multiple of 4 \* num_heads, 64"),
    ("qwen2_vl", {"in_chans": 1}, "in_chans is 1, allowed: 3"),
    ("qwen2_vl", {"spatial_patch_size": 16}, "spatial_patch_size is 16, allowed: 14"),
    ("qwen2_vl", {"hidden_act": "odd"}, 'hidden_act is "odd", allowed: one of'),
    ("qwen2_5_vl", {"out_hidden_size": 32}, "out_hidden_size is 32, allowed: the decoder's hidden_size, 64"),
    (
        "qwen2_5_vl",
        {"fullatt_block_indexes": [9]},
        r"fullatt_block_indexes is \[9\], allowed: a list of layers below 3",
    ),
    ("qwen2_5_vl", {"window_size": 27}, "window_size is 27, allowed: an integer of at least 28"),
    ("qwen3_vl", {"deepstack_visual_indexes": [1, 0]}, "deepstack_visual_indexes .* ascending order"),
    ("qwen3_vl", {"num_position_embeddings": 15}, "num_position_embeddings is 15, allowed: a square number"),
]


@pytest.mark.parametrize(("name", "changes", "message"), VISION_REFUSALS)
def test_vision_configs_that_cannot_be_followed_are_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_model(config_of(name, **changes), sees=True)


def test_a_config_without_a_tower_is_refused() -> None:
    with pytest.raises(ModelError, match=r"config\.json has no vision_config"):
        read_model({**config_of("qwen2_vl"), "vision_config": None}, sees=True)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_of_a_model_that_sees_have_three_positions(name: str) -> None:
    config = config_of(name)
    text = config.get("text_config", config)
    described = text["rope_parameters" if "rope_parameters" in text else "rope_scaling"]
    assert read_model(config, sees=True).facts.has_axes
    assert not read_model(config).facts.has_axes
    described["mrope_interleaved"] = "mrope_interleaved" not in described
    with pytest.raises(ModelError, match=r"mrope_interleaved is (true|false), allowed: (true|false)"):
        read_model(config)
    del described["mrope_interleaved"], described["mrope_section"]
    with pytest.raises(ModelError, match="has no mrope_section"):
        read_model(config)


def test_more_levels_than_the_text_has_layers_to_add_them_to_are_refused() -> None:
    config = config_of("qwen3_vl", depth=3, deepstack_visual_indexes=[0, 1, 2])
    with pytest.raises(ModelError, match="pictures come in 4 levels, allowed: at most the text's 3 layers"):
        read_model(config, sees=True)


TOWERS = list(product(["qwen2_vl", "qwen2_5_vl", "qwen3_vl"], ["f32", "int8"]))


@pytest.mark.varies("what is fused depends on the processor")
@pytest.mark.parametrize(("name", "weight_type"), tiers.width(TOWERS, [("qwen2_5_vl", "f32"), ("qwen3_vl", "int8")]))
def test_scores_of_all_patches_are_never_in_memory_at_once(name: str, weight_type: WeightType, tmp_path: Path) -> None:
    """They would take gigabytes for a large picture; one fused node reads them in parts. Heads turn in one node too."""
    nodes = SeeingModel(name, tmp_path, ModelOptions(weight_type=weight_type)).tower_nodes()
    assert not {"Softmax", "MatMul"} & set(nodes)
    assert nodes["RoPE"] == 2 * read_vision_case(name)["config"]["vision_config"]["depth"]
