"""MXFP4 matrices have the values that the format's definition gives them, whole or in parts, and keep them in a graph."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from dragoman.models import LoadedModel, ModelError, ModelOptions, load_model
from dragoman.models.profile import AdapterOptions, kernel_profile
from dragoman.models.sources.base import PackedMatrix
from dragoman.models.sources.mxfp4 import Mxfp4Matrix
from dragoman.models.storage.constants import WeightStorage, weight_matrix
from dragoman.models.storage.row_parts import RowParts
from dragoman.models.stored.opening import stored_weights
from tests.support.family_checkpoint import read_case, write_case, write_family_checkpoint
from tests.support.gguf_writer import write_gguf

CASE = "gpt_oss_mxfp4"
NUM_MATRICES = 4 * 8 * 3  # of its layers' experts: gate, up and down


def random_matrix(num_rows: int, num_columns: int, scales: tuple[int, int]) -> Mxfp4Matrix:
    stream = np.random.RandomState(3)
    groups = num_columns // 32
    blocks = stream.randint(0, 256, (num_rows, groups, 16)).astype(np.uint8)
    return Mxfp4Matrix(blocks, stream.randint(*scales, (num_rows, groups)).astype(np.uint8))


def constant_types(loaded: LoadedModel) -> list[str]:
    """Of the graph as the runtime has it."""
    nodes = [node.get_rt_info() for node in loaded.compiled.get_runtime_model().get_ops()]
    return [node["outputPrecisions"].astype(str) for node in nodes if node["layerType"].astype(str) == "Const"]


def test_every_code_has_its_value() -> None:
    codes = np.arange(16, dtype=np.uint8)
    blocks = np.concatenate([codes[0::2] | codes[1::2] << 4] * 2).reshape(1, 1, 16)
    positive = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    values = positive + [-value for value in positive]
    for scale, factor in ((127, 1.0), (126, 0.5), (130, 8.0), (0, 2.0**-127), (252, 2.0**125)):
        matrix = Mxfp4Matrix(blocks, np.full((1, 1), scale, dtype=np.uint8))
        assert np.array_equal(np.asarray(matrix), np.array([values * 2], dtype=np.float32) * np.float32(factor))


def test_parts_are_those_of_the_whole() -> None:
    matrix = random_matrix(6, 128, (110, 130))
    whole = np.asarray(matrix)
    assert matrix.shape == whole.shape == (6, 128)
    assert np.array_equal(np.asarray(matrix[1::2]), whole[1::2])


def test_integers_in_the_same_groups_have_the_same_values() -> None:
    matrix = random_matrix(6, 128, (0, 253))
    packed = matrix.packed()
    assert (packed.group_size, packed.bits, packed.values.dtype) == (32, 8, np.int8)
    assert np.array_equal(packed.unpacked(), np.asarray(matrix))
    assert np.array_equal(packed[1::2].unpacked(), np.asarray(matrix[1::2]))


@pytest.mark.parametrize("num_rows", [1, 8, 40])
def test_a_graph_keeps_every_value(num_rows: int) -> None:
    """Up to the smallest and the largest scale that has a place there; arithmetic is in f32."""
    matrix = random_matrix(192, 128, (104, 144))
    x = ops.parameter([-1, 128], ov.Type.f32)
    with RowParts() as parts:
        weight = weight_matrix(matrix.packed(), WeightStorage(kernel_profile(ModelOptions()).weights, parts))
        parts.finish()
    graph = ov.Model([ops.matmul(x, weight, transpose_a=False, transpose_b=True).output(0)], [x])
    settings = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    compiled = ov.Core().compile_model(graph, "CPU", settings)
    rows = np.random.RandomState(4).standard_normal((num_rows, 128)).astype(np.float32)
    expected = rows @ np.asarray(matrix).T
    assert np.abs(compiled([rows])[0] - expected).max() < 1e-6 * np.abs(expected).max()


def test_a_scale_that_no_graph_holds_is_refused() -> None:
    with RowParts() as parts, pytest.raises(ModelError, match="scales are not finite, or too large for f16"):
        weight_matrix(
            random_matrix(4, 64, (144, 145)).packed(), WeightStorage(kernel_profile(ModelOptions()).weights, parts)
        )


def test_experts_stay_in_their_groups_unless_a_type_is_asked_for(tmp_path: Path) -> None:
    directory = write_family_checkpoint(CASE, tmp_path)
    kept = load_model(directory, ModelOptions(kernels="openvino"))
    num_signed = constant_types(kept).count("i8")
    assert num_signed == NUM_MATRICES or (
        kept.profile.weights.stored_type == "int8_symmetric" and num_signed > NUM_MATRICES
    )
    assert (kept.profile.activation_group, kept.stored_as) == (32, "MXFP4 weights, others int8")
    assert load_model(directory, ModelOptions()).stored_as == kept.stored_as
    asked = load_model(directory, ModelOptions("int8", asks_for_type=True))
    assert (asked.profile.activation_group, asked.stored_as) == (128, "int8 weights from MXFP4")
    assert load_model(directory, ModelOptions("f32")).stored_as == "f32 weights from MXFP4"


def test_what_they_take_is_foretold(tmp_path: Path) -> None:
    directory = write_family_checkpoint(CASE, tmp_path)
    name = "model.layers.0.mlp.experts.down_proj"
    for keeps_rows, bits in ((False, 8.5), (True, 4.5)):  # with the scales of groups of 32
        weights = stored_weights(directory, keeps_mxfp4=True, keeps_rows=keeps_rows)
        assert weights.packed_bytes()[name] == np.prod(weights.shapes()[name]) * bits / 8


def test_a_kept_graph_is_of_one_way_of_storing_them(tmp_path: Path) -> None:
    directory = write_family_checkpoint(CASE, tmp_path / "model")
    kept, asked = (ModelOptions("int8", asks_for_type=asks, cache_dir=tmp_path / "kept") for asks in (False, True))
    assert [load_model(directory, options).from_cache for options in (kept, asked, kept, asked)] == [
        False, False, True, True,
    ]  # fmt: skip


def test_a_file_keeps_them_in_their_groups_too(tmp_path: Path) -> None:
    case = read_case("gpt_oss")
    case["config"]["swiglu_limit"] = 7.0
    path = write_gguf("gpt_oss", case, tmp_path, "Q8_0", expert_type="MXFP4")
    kept = load_model(path, ModelOptions(kernels="openvino"))
    assert constant_types(kept).count("i8") >= NUM_MATRICES
    assert kept.facts.departures == ()
    (said,) = load_model(path, ModelOptions("int8", asks_for_type=True)).facts.departures
    assert said.startswith("MXFP4 weights are computed and stored anew as int8")


def test_rows_of_a_file_have_their_values(tmp_path: Path) -> None:
    path = write_gguf("qwen3", read_case("qwen3"), tmp_path, "MXFP4")
    name, shape = "model.layers.0.mlp.gate_proj.weight", read_case("qwen3")["tensors"]
    weights = stored_weights(path, keeps_mxfp4=True)
    stored = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == "blk.0.ffn_gate.weight")
    with weights.open() as source:
        matrix = source.tensor(name, tuple(shape[name]))
    assert isinstance(matrix, PackedMatrix)
    assert (weights.smallest_group, weights.recompressed) == (32, ())
    assert np.array_equal(matrix.unpacked(), gguf.quants.dequantize(stored.data, stored.tensor_type))


def test_adapters_are_merged_into_their_numbers() -> None:
    assert ModelOptions().keeps_mxfp4
    assert not ModelOptions(adapters=AdapterOptions((("a", Path("a")),), merges=True)).keeps_mxfp4


def test_stacks_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for ending, shape, problem in (
        ("scales", [8, 64, 2], "down_proj_scales' has shape [8, 64, 2], the others of its matrix imply [8, 64, 3]"),
        ("blocks", [8, 64, 3, 8], "down_proj_blocks' has groups of 8 bytes, allowed: 16"),
    ):
        case = read_case(CASE)
        case["tensors"][f"model.layers.0.mlp.experts.down_proj_{ending}"] = shape
        with pytest.raises(ModelError) as caught:
            load_model(write_case(CASE, case, tmp_path / ending), ModelOptions())
        assert problem in str(caught.value)


def test_a_scale_that_is_no_number_is_refused() -> None:
    with pytest.raises(ModelError, match="MXFP4 scale is 255, allowed: 0 to 252"):
        Mxfp4Matrix(np.zeros((1, 1, 16), dtype=np.uint8), np.full((1, 1), 255, dtype=np.uint8))


def test_other_families_do_not_take_it(tmp_path: Path) -> None:
    case = read_case("llama_default")
    case["config"]["quantization_config"] = {"quant_method": "mxfp4"}
    with pytest.raises(ModelError, match='quant_method "mxfp4" is not supported'):
        load_model(write_case("llama_default", case, tmp_path), ModelOptions("f32"))


def test_bits_are_no_weights_elsewhere(tmp_path: Path) -> None:
    case = read_case("gpt_oss_mxfp4")
    case["dtypes"]["*router.weight"] = "U8"
    case["values"]["*router.weight"] = {"low": 0, "high": 9}
    with pytest.raises(ModelError, match=r"router.weight' has elements of type U8, allowed: floating-point numbers"):
        load_model(write_case("gpt_oss_mxfp4", case, tmp_path), ModelOptions("f32"))
