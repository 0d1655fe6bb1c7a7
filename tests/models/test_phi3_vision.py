"""An exported Phi-3.5-vision embeds pictures and reads them as its torch parts do; what it cannot take is refused by name.

The export is tests/models/exported_seeing; scripts/record_phi3_vision.py recorded it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.forward.runner import PictureInputs
from dragoman.engine.rolling.needs import memory_needs
from dragoman.engine.rolling.options import RollingOptions
from dragoman.models import BLOCK_SIZE, LoadedModel, ModelError, ModelOptions, load_model
from dragoman.models.config import Config
from dragoman.models.ir.phi3_vision import HdPictures, Phi3Vision
from dragoman.models.vision.tower import Tower
from tests.support.family_checkpoint import Array
from tests.support.forward import forward_batch
from tests.support.odd_values import ODD_VALUES
from tests.support.seeing_export import PLACEHOLDER, REFERENCE, read_seeing_case, write_seeing_export
from tests.support.vision_checkpoint import checksum, draw, prompt_pieces, sampled
from tests.support.vision_model import embedded, relative_error

F32 = ModelOptions(weight_type="f32")
CASE = read_seeing_case()
EXPECTED = np.load(REFERENCE)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seeing_export(tmp_path_factory.mktemp("phi3_v"))


@pytest.fixture(scope="module")
def loaded(directory: Path) -> LoadedModel:
    return load_model(directory, F32)


@pytest.fixture(scope="module")
def tower(loaded: LoadedModel) -> Tower:
    assert loaded.tower is not None
    return loaded.tower


@pytest.fixture
def copied(directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(directory, tmp_path / "copied"))


def processor(**changes: Any) -> HdPictures:
    return HdPictures(Config(CASE["preprocessor"] | changes, "preprocessor_config.json"))


# --- as the reference -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASE["pictures"])
def test_pictures_are_prepared_as_the_reference_prepares_them(name: str) -> None:
    found = processor(num_crops=int(EXPECTED[f"crops_{name}"])).inputs(draw(CASE["pictures"][name]), "auto")
    pixels = found["pixel_values"]
    assert list(pixels.shape) == EXPECTED[f"shape_{name}"].tolist()
    assert np.max(np.abs(sampled(pixels) - EXPECTED[f"pixels_{name}"])) < 1e-6
    assert abs(checksum(pixels) - EXPECTED[f"checksum_{name}"]) < 1e-6 * pixels.size**0.5


def test_float32_embeddings_equal_the_reference(tower: Tower) -> None:
    errors = {}
    for name in PICTURES:
        width, height = CASE["pictures"][name][:2]
        found = embedded(tower, draw(CASE["pictures"][name]))
        assert len(found) == EXPECTED[f"count_{name}"] == tower.processor.layout(width, height, "auto").num_embeddings
        errors[name] = relative_error(sampled(found), EXPECTED[f"embeddings_{name}"])
    assert max(errors.values()) < 1e-4, errors


PICTURES = [name for name in CASE["pictures"] if int(EXPECTED[f"crops_{name}"]) == CASE["preprocessor"]["num_crops"]]


@pytest.mark.parametrize("cuts", [(), (1, 300, 301, 900)])
def test_float32_logits_equal_the_reference(loaded: LoadedModel, tower: Tower, cuts: tuple[int, ...]) -> None:
    errors = []
    for index in range(len(CASE["prompts"])):
        expected = EXPECTED[f"logits_{index}"]
        ids = EXPECTED[f"token_ids_{index}"].astype(np.int64)
        pictures = [piece for kind, piece in prompt_pieces("phi3_v", CASE, index) if kind == "picture"]
        embeddings = [embedded(tower, draw(CASE["pictures"][name])) for name in pictures]
        ends = (0, *(cut for cut in cuts if cut < len(ids)), len(ids))
        logits = logits_of(loaded, ids, np.concatenate([np.zeros((0, 64), np.float32), *embeddings]), ends)
        errors.append(relative_error(logits[-len(expected) :, EXPECTED["columns"]], expected))
    assert max(errors) < 1e-4, errors


def logits_of(loaded: LoadedModel, ids: Array, embeddings: Array, ends: tuple[int, ...]) -> Array:
    """Of every token of a prompt that is computed in pieces."""
    runner = OpenVinoRunner(loaded, num_blocks=-(-len(ids) // BLOCK_SIZE))
    rows, found = np.flatnonzero(ids == PLACEHOLDER), []
    for begin, end in pairwise(ends):
        first, last = np.searchsorted(rows, (begin, end))
        batch = forward_batch([(ids[begin:end].tolist(), begin, range(-(-end // BLOCK_SIZE)))], range(end - begin))
        positions = np.zeros((3, end - begin), dtype=np.int64)
        seen = PictureInputs(rows[first:last] - begin, embeddings[first:last], positions)
        found.append(runner.forward(replace(batch, pictures=seen)).copy())
    runner.close()
    return np.concatenate(found)


def test_compressed_weights_are_served_with_pictures(directory: Path, tower: Tower) -> None:
    picture = draw(CASE["pictures"]["odd"])
    compressed = load_model(directory, ModelOptions()).tower
    assert compressed is not None
    assert relative_error(embedded(compressed, picture), embedded(tower, picture)) < 0.1


# --- what a picture becomes -------------------------------------------------------------------------------------------


def test_with_low_detail_a_picture_is_one_tile_and_the_copy() -> None:
    for size in ((1, 1), (700, 330), (330, 700)):
        layout = processor(num_crops=16).layout(*size, "low")
        assert layout.num_embeddings == 2 * 144 + 1 + 2 * 12
        assert layout.text == layout.num_embeddings * "<|image|>"
    assert processor().inputs(draw([330, 700, "noise", 1]), "low")["pixel_values"].shape == (2, 3, 336, 336)


@pytest.mark.parametrize(
    ("crops", "size", "grid"),
    [(4, (1000, 1000), (2, 2)), (16, (1000, 1000), (4, 4)), (16, (1000, 500), (3, 5)), (16, (100, 1000), (10, 1))],
)
def test_more_tiles_are_taken_where_the_file_allows_them(
    crops: int, size: tuple[int, int], grid: tuple[int, int]
) -> None:
    down, across = grid
    expected = (down * across + 1) * 144 + 1 + (down + 1) * 12
    assert processor(num_crops=crops).layout(*size, "high").num_embeddings == expected


def test_a_picture_that_is_nothing_but_a_line_is_refused() -> None:
    assert processor().layout(1344, 1, "auto").num_embeddings == 745
    for size in ((1345, 1), (1, 4000)):
        with pytest.raises(ValueError, match="allowed: none with a side more than 1344 times the other"):
            processor().layout(*size, "auto")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_crops": 0}, "num_crops is 0, allowed: an integer of at least 1"),
        ({"num_crops": 101}, "num_crops is 101, allowed: at most 100"),
        ({"num_img_tokens": 256}, "num_img_tokens is 256, allowed: 144"),
        ({"image_processor_type": "CLIPImageProcessor"}, "allowed: one of Phi3VImageProcessor"),
        ({"sharpen": 2}, r"unknown keys .* sharpen \(2\)"),
    ],
)
def test_pictures_that_would_be_prepared_otherwise_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        processor(**changes)


# --- directories ------------------------------------------------------------------------------------------------------


def test_a_tower_is_kept_and_mapped_at_the_next_start(directory: Path, tmp_path: Path) -> None:
    found = []
    for is_kept in (False, True):
        again = load_model(directory, ModelOptions(weight_type="f32", cache_dir=tmp_path))
        assert again.from_cache == is_kept
        assert again.tower is not None
        found.append(embedded(again.tower, draw(CASE["pictures"]["large"])))
    assert (found[0] == found[1]).all()
    assert len(list(tmp_path.glob("*.blob"))) == 2


def test_without_pictures_the_same_directory_serves_texts(directory: Path) -> None:
    blind = load_model(directory, ModelOptions(weight_type="f32", sees=False))
    assert blind.tower is None
    assert blind.facts.pictures is None
    assert not any("pictures" in departure for departure in blind.facts.departures)


def test_the_context_ends_where_the_graph_would_need_other_rotary_factors(loaded: LoadedModel) -> None:
    assert loaded.facts.max_position == 4096
    told = "the context is 4096 tokens, not 131072: the exported graph has the rotary factors of short ones alone"
    assert loaded.facts.departures == (told,)


def test_what_a_model_needs_covers_its_tower(directory: Path) -> None:
    seeing, blind = (
        memory_needs(directory, RollingOptions(dtype="f32", limit_mm_per_prompt=most)).weights for most in (None, 0)
    )
    tower = sum(path.stat().st_size for path in directory.glob("openvino_vision_*.bin"))
    assert tower <= seeing - blind <= 1.1 * tower


@pytest.mark.parametrize(
    "missing",
    ["preprocessor_config.json", "openvino_vision_embeddings_model.xml", "openvino_vision_projection_model.xml"],
)
def test_where_a_file_is_missing_texts_are_served_and_the_start_says_so(missing: str, copied: Path) -> None:
    (copied / missing).unlink()
    found = load_model(copied, F32)
    assert found.tower is None
    assert any(f"pictures are refused: there is no {missing}" in told for told in found.facts.departures)


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "change", "problem"),
    [
        ("config.json", lambda c: c.pop("embd_layer"), "config.json has no embd_layer"),
        (
            "config.json",
            lambda c: c["embd_layer"].update(hd_transform_order="glb_sub"),
            'embd_layer hd_transform_order is "glb_sub", allowed: "sub_glb"',
        ),
        ("config.json", lambda c: c["img_processor"].update(num_img_tokens=9), "num_img_tokens is 9, allowed: 144"),
        ("config.json", lambda c: c.pop("glb_GN"), "config.json has no glb_GN, allowed: a list of 128 numbers"),
        (
            "config.json",
            lambda c: c.update(sub_GN=[[1.0, 2.0]]),
            r"config.json sub_GN is \[1.0, 2.0\], allowed: a list of 128",
        ),
        ("preprocessor_config.json", lambda c: c.update(num_crops="many"), "num_crops is "),
        ("tokenizer.json", lambda c: c.update(added_tokens=[]), "tokenizer.json has no added token <|image|>"),
    ],
)
def test_a_tower_that_is_not_understood_is_refused_with_the_way_out(
    file: str, change: Callable[[dict[str, Any]], object], problem: str, copied: Path
) -> None:
    changed(copied / file, change)
    with pytest.raises(ModelError, match=problem.replace("|", r"\|")) as caught:
        load_model(copied, F32)
    assert str(caught.value).endswith("; limit_mm_per_prompt image=0 serves its texts alone")
    assert load_model(copied, ModelOptions(weight_type="f32", sees=False)).tower is None


def test_an_odd_value_is_refused_or_read_but_never_fails_otherwise(copied: Path) -> None:
    for key in CASE["preprocessor"]:
        for value in ODD_VALUES:
            with suppress(ModelError):  # anything else fails the test
                assert processor(**{key: value}).marker, (key, value)
    raw = json.loads((copied / "config.json").read_text(encoding="utf-8"))
    places = [(raw, key) for key in ("embd_layer", "img_processor", "glb_GN", "sub_GN")]
    places += [(raw[part], key) for part in ("embd_layer", "img_processor") for key in raw[part]]
    for place, key in places:
        usual = place[key]
        for value in ODD_VALUES:
            place[key] = value
            (copied / "config.json").write_text(json.dumps(raw), encoding="utf-8")
            with suppress(ModelError):
                assert Phi3Vision(copied, 64).facts.placeholder_id == PLACEHOLDER, (key, value)
        place[key] = usual


def test_graphs_of_another_tower_are_refused(copied: Path) -> None:
    changed(copied / "config.json", lambda c: c["img_processor"].update(image_dim_out=16))
    changed(copied / "config.json", lambda c: c.update(sub_GN=c["sub_GN"][0][0][0][:64], glb_GN=c["glb_GN"][0][0][:64]))
    with pytest.raises(
        ModelError, match=r"vision_embeddings_model.xml gives .*, allowed: \[\?,576,16\], as config.json says"
    ):
        load_model(copied, F32)


def test_a_projection_with_other_inputs_is_refused(copied: Path) -> None:
    path = copied / "openvino_vision_projection_model.xml"
    inputs = [ops.parameter(ov.PartialShape([-1, -1, 64]), ov.Type.f32, name=name) for name in ("a", "b")]
    ov.save_model(ov.Model([ops.add(*inputs)], inputs, "small"), path, compress_to_fp16=False)
    with pytest.raises(ModelError, match=r"projection_model.xml has 2 inputs, allowed: one, of f32"):
        load_model(copied, F32)


@pytest.mark.parametrize("value", [[], {}, ["phi3_v"], 7, True, None])
def test_a_type_of_model_that_is_no_text_takes_in_texts_alone(value: object, copied: Path) -> None:
    changed(copied / "config.json", lambda c: c.update(model_type=value))
    found = load_model(copied, F32)
    assert found.tower is None
    assert "pictures are refused: the exported graphs that see do not run here" in found.facts.departures


def write_graph(path: Path, source: Any, *results: Any) -> None:
    ov.save_model(ov.Model([ops.result(one) for one in results], [source], "other"), path, compress_to_fp16=False)


def zeros(*shape: int) -> Any:
    return ops.constant(np.zeros(shape, dtype=np.float32))


@pytest.mark.parametrize("part", ["vision", "projection"])
def test_graphs_that_do_not_fit_each_other_are_refused_by_their_names(part: str, copied: Path) -> None:
    if part == "vision":  # of pictures with one channel
        x = ops.parameter(ov.PartialShape([-1, 1, 336, 336]), ov.Type.f32, name="pixel_values")
        patches = ops.convolution(x, zeros(32, 1, 14, 14), [14, 14], [0, 0], [0, 0], [1, 1])
        rows = ops.reshape(patches, ops.constant(np.array([-1, 32, 576])), special_zero=False)
        write_graph(
            copied / "openvino_vision_embeddings_model.xml", x, ops.transpose(rows, ops.constant(np.array([0, 2, 1])))
        )
    else:  # of another width
        x = ops.parameter(ov.PartialShape([-1, -1, 96]), ov.Type.f32, name="input")
        write_graph(copied / "openvino_vision_projection_model.xml", x, ops.matmul(x, zeros(1, 96, 64), False, False))
    both = r"openvino_vision_embeddings_model.xml and .*openvino_vision_projection_model.xml do not fit: .+"
    with pytest.raises(ModelError, match=both) as caught:
        load_model(copied, F32)
    assert "\n" not in str(caught.value)


TABLE, VISION, PROJECTION = (
    f"openvino_{part}_model.xml" for part in ("text_embeddings", "vision_embeddings", "vision_projection")
)
EMBEDS = "the graph that embeds texts"


@pytest.mark.parametrize(
    ("file", "results", "problem"),
    [
        (TABLE, lambda x: [x, x], rf"{EMBEDS} has 2 outputs, allowed: one"),
        (TABLE, lambda x: [ops.squeeze(x, [0])], rf"{EMBEDS} gives \[.*\], allowed: \[\?,\?,\?\]"),
        (VISION, lambda x: [x, x], rf"{VISION} has 2 outputs, allowed: one"),
        (VISION, lambda x: [ops.unsqueeze(x, [0])], rf"{VISION} gives \[1,\?,576,32\], allowed: \[\?,576,32\]"),
        (PROJECTION, lambda x: [x, x], rf"{PROJECTION} has 2 outputs, allowed: one"),
        (PROJECTION, lambda x: [ops.unsqueeze(x, [0])], rf"{PROJECTION} gives \[.*\], allowed: \[\?,\?,64\]"),
        (
            PROJECTION,
            lambda x: [ops.squeeze(x, ops.squeeze(ops.non_zero(ops.shape_of(x)), [0]))],
            rf"{PROJECTION} gives \[\.\.\.\], allowed: \[\?,\?,64\]",
        ),
    ],
)
def test_graphs_that_give_something_else_are_refused(
    file: str, results: Callable[[Any], list[Any]], problem: str, copied: Path
) -> None:
    path = copied / file
    graph = ov.Core().read_model(path.read_bytes(), ov.Tensor(np.fromfile(path.with_suffix(".bin"), np.uint8)))
    [result] = graph.get_results()
    graph.remove_result(result)
    graph.add_results([ops.result(one) for one in results(result.input_value(0))])
    ov.save_model(graph, path, compress_to_fp16=False)
    with pytest.raises(ModelError, match=problem):
        load_model(copied, F32)


def test_weights_that_are_missing_are_named(copied: Path) -> None:
    (copied / "openvino_vision_embeddings_model.bin").unlink()
    with pytest.raises(ModelError, match=r"openvino_vision_embeddings_model.bin does not exist"):
        load_model(copied, F32)
