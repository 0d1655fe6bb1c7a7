"""Reading checkpoints: what is supported loads, what is not is refused by name; compression keeps its bounds."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openvino import opset13 as ops

from dragoman.models import ModelError, ModelOptions, load_model
from dragoman.models.blocks.linear import product
from dragoman.models.blocks.nodes import gather_rows
from dragoman.models.families import read_model
from dragoman.models.profile import Processor, lacks_avx2, lacks_vnni, this_processor
from dragoman.models.sources.safetensors import Checkpoint
from dragoman.models.storage.constants import StoredType, WeightFormat, WeightStorage, embedding_table, weight_matrix
from dragoman.models.storage.groups import quantize_int8, quantize_int8_symmetric
from dragoman.models.storage.row_parts import RowParts
from dragoman.models.stored.opening import read_ahead
from tests.support.random_checkpoint import TIED, UNTIED, write_checkpoint

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": None}, "config.json has no hidden_size, allowed: an integer of at least 1"),
        ({"num_key_value_heads": 3}, "num_attention_heads is 4, allowed: a multiple of num_key_value_heads 3"),
        ({"hidden_act": "wave"}, "hidden_act is .wave., allowed: one of silu"),
        ({"head_dim": 15}, "15 dimensions of a head .* must be an even number"),
        ({"rope_scaling": {"rope_type": "odd"}}, '"odd" is not supported, allowed: default, linear'),
        ({"quantization_config": {"quant_method": "hqq"}}, '"hqq" is not supported'),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_unsupported_config_is_refused_by_key(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read_model(CONFIG | change)


def rotary_frequencies(change: dict[str, Any]) -> list[float]:
    """Those of the first layer of a model with that change to its config."""
    attention = read_model(CONFIG | change).facts.attention_layers[0]
    assert attention.rotary is not None
    return list(attention.rotary.frequencies)


def test_rope_theta_is_read_from_all_places_transformers_has_put_it() -> None:
    for change in ({"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}):
        assert rotary_frequencies(change)[1] == pytest.approx(5e5 ** (-2 / 16))


def test_linear_scaling_divides_every_frequency() -> None:
    plain, scaled = rotary_frequencies({}), rotary_frequencies({"rope_scaling": {"type": "linear", "factor": 4.0}})
    assert scaled == pytest.approx([frequency / 4 for frequency in plain])


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda directory: (directory / "config.json").unlink(), "config.json does not exist"),
        (lambda directory: (directory / "config.json").write_text("[1]"), "expected a JSON object"),
        (lambda directory: (directory / "model.safetensors").unlink(), "holds no"),
        (lambda directory: (directory / "model.safetensors").write_bytes(b"junk"), "not a readable safetensors"),
        (lambda directory: _edit_config(directory, architectures=["BertModel"]), "BertModel.*supported: .*Llama"),
        (lambda directory: _edit_config(directory, num_hidden_layers=3), "no tensor 'model.layers.2"),
        (lambda directory: _edit_config(directory, intermediate_size=512), "config.json implies"),
    ],
    ids=[
        "no config",
        "not an object",
        "no weights",
        "junk weights",
        "architecture",
        "missing tensor",
        "shape",
    ],
)
def test_a_broken_directory_is_refused_with_the_reason(break_it: Any, words: str, tmp_path: Path) -> None:
    directory = write_checkpoint(UNTIED, tmp_path)
    break_it(directory)
    with pytest.raises(ModelError, match=words):
        load_model(directory, ModelOptions())


def _edit_config(directory: Path, **change: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    directory = write_checkpoint(TIED, tmp_path)
    (directory / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match="model-00002-of-00002"):
        load_model(directory, ModelOptions())


def test_a_kv_type_that_does_not_go_with_the_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="kv-dtype 'bf16' does not go with f32 inference"):
        load_model(write_checkpoint(UNTIED, tmp_path), ModelOptions(weight_type="f32", kv_type="bf16"))


def test_an_arm_processor_has_a_cache_of_types_that_its_kernels_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.models.profile.this_processor", lambda: Processor("an Arm", ("FP32",), is_arm=True))
    directory = write_checkpoint(UNTIED, tmp_path)
    loaded = load_model(directory, ModelOptions())
    assert (loaded.profile.inference_type, loaded.profile.kv_type) == ("f32", "f32")
    with pytest.raises(ModelError, match="kv-dtype 'f16' does not go with f32 inference; allowed: f32, u8"):
        load_model(directory, ModelOptions(kv_type="f16"))


def test_an_arm_processor_without_sve_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Processor("an Arm", ("FP32",), is_arm=True, has_paged_attention=False)
    monkeypatch.setattr("dragoman.models.profile.this_processor", lambda: old)
    with pytest.raises(ModelError, match="has no SVE"):
        load_model(write_checkpoint(UNTIED, tmp_path), ModelOptions())


def test_an_x86_processor_without_avx2_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels of paged attention fail when they are made, with an error of many lines."""
    old = Processor("an Ivy Bridge", ("FP32",), has_paged_attention=False)
    monkeypatch.setattr("dragoman.models.profile.this_processor", lambda: old)
    with pytest.raises(ModelError, match="this processor has no AVX2, and the attention kernels need it"):
        load_model(write_checkpoint(UNTIED, tmp_path), ModelOptions())


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("processor : 0\nflags : fpu avx sse4_2\n", True),
        ("processor : 0\nflags : fpu avx avx2\n", False),
        ("processor : 0\nFeatures : fp asimd\n", False),
        ("", False),
    ],
)
def test_only_an_x86_processor_lacks_avx2(text: str, lacks: bool, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert lacks_avx2(tmp_path / "cpuinfo") == lacks
    assert not lacks_avx2(tmp_path / "missing")


@pytest.mark.parametrize("largest", [60_000.0, 70_000.0])
def test_embeddings_of_any_size_keep_their_values(largest: float) -> None:
    table = np.array([[0.5, -1.25], [largest, 3.0]], dtype=ml_dtypes.bfloat16)
    token_ids = ops.parameter([-1], np.int64)
    with RowParts() as parts:
        rows_node = gather_rows(embedding_table(table, WeightStorage(WeightFormat("int8"), parts)), token_ids.output(0))
    model = ov.Model([rows_node], [token_ids])
    rows = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([np.array([1, 0])])[0]
    assert rows.tolist() == [table[1].astype(float).tolist(), table[0].astype(float).tolist()]


def test_shards_hold_every_tensor_in_bfloat16(tmp_path: Path) -> None:
    with Checkpoint(write_checkpoint(TIED, tmp_path)) as checkpoint:
        assert "lm_head.weight" not in checkpoint
        table = checkpoint.tensor("model.embed_tokens.weight", (TIED.vocab_size, TIED.hidden_size))
        assert isinstance(table, np.ndarray)
        assert table.dtype == ml_dtypes.bfloat16
        assert len(list(checkpoint)) == 2 + TIED.num_layers * 16


def test_tensors_are_read_wherever_they_lie_and_refused_if_they_are_no_weights(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0], [0.0, 3.25]], dtype=np.float32)
    header = {
        "odd": {"dtype": "I8", "shape": [3], "data_offsets": [0, 3]},
        "weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [3, 19]},  # not at a multiple of its size
        "__metadata__": {"format": "pt"},
    }
    encoded = json.dumps(header).encode()
    contents = len(encoded).to_bytes(8, "little") + encoded + b"abc" + values.tobytes()
    (tmp_path / "model.safetensors").write_bytes(contents)
    with Checkpoint(tmp_path) as checkpoint:
        assert sorted(checkpoint) == ["odd", "weight"]
        assert np.array_equal(checkpoint.tensor("weight", (2, 2)), values)
        assert np.shares_memory(checkpoint.tensor("weight", (2, 2)), checkpoint.tensor("weight", (2, 2)))
        with pytest.raises(ModelError, match="'odd' has elements of type I8, allowed: F64, F32, F16, BF16, U8"):
            checkpoint.tensor("odd", (3,))
    assert (tmp_path / "model.safetensors").read_bytes() == contents


matrices = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.RandomState(seed).standard_normal((5, 256)).astype(np.float32) * 10.0 ** (seed % 5 - 3)
)


@given(matrices)
def test_int8_error_is_at_most_about_half_a_step(weight: Any) -> None:
    values = np.empty(weight.shape, np.uint8)
    zero_points, scales = quantize_int8(weight, values)
    steps = scales.astype(np.float32)
    # half a step from rounding, up to one more at the ends where scale (f16) and zero point are rounded too
    assert np.all(np.abs((values.astype(np.float32) - zero_points) * steps - weight) <= 1.6 * steps)


@given(matrices)
def test_symmetric_int8_error_is_at_most_about_half_a_step(weight: Any) -> None:
    values = np.empty(weight.shape, np.int8)
    steps = quantize_int8_symmetric(weight, values).astype(np.float32)
    assert np.all(np.abs(values.astype(np.float32) * steps - weight) <= 0.6 * steps)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_range_of_a_row_is_that_of_its_numbers_and_zero(dtype: Any, sign: int) -> None:
    weight = (np.array([[1.5, 0.25, 3.0, 0.0], [-1.5, 0.5, -0.0, 4.0]]) * sign).astype(dtype)
    values = np.empty(weight.shape, np.uint8)
    zero_points, scales = quantize_int8(weight, values)
    expected = np.array([3.0, 5.5]) / 255
    assert np.allclose(scales[:, 0].astype(float), expected, rtol=1e-3)
    low = -np.array([0.0, 1.5]) if sign > 0 else -np.array([3.0, 4.0])
    assert np.array_equal(zero_points[:, 0], np.rint(-low / scales[:, 0].astype(np.float32)))


def computed(node: Any) -> Any:
    """What a graph without inputs gives."""
    return ov.Core().compile_model(ov.Model([node], []), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([])[0]


def stored(weight: Any, stored_type: StoredType) -> Any:
    """The values that a graph holds for a weight."""
    with RowParts() as parts:
        node = weight_matrix(weight, WeightStorage(WeightFormat(stored_type), parts))
        parts.finish()
    return computed(node)


@pytest.mark.parametrize("stored_type", ["int8", "int8_symmetric", "int4"])
def test_a_large_matrix_is_compressed_as_its_rows_are(stored_type: StoredType) -> None:
    weight = np.random.RandomState(0).standard_normal((5000, 256)).astype(ml_dtypes.bfloat16)
    whole = stored(weight, stored_type)
    for row in (0, 1, 2047, 2048, 2049, 2500, 4095, 4096, 4999):
        assert np.array_equal(whole[row : row + 1], stored(weight[row : row + 1].astype(np.float32), stored_type))


def test_what_goes_wrong_in_a_part_is_raised_and_ends_the_others() -> None:
    def fail(part: slice) -> None:
        raise ValueError(f"rows from {part.start}")

    with pytest.raises(ValueError, match="rows from 0"), RowParts() as parts:  # noqa: PT012
        parts.submit((4, 10), lambda _part: None)
        parts.submit((4, 10), fail)
        parts.finish()


@given(st.integers(1, 4), st.integers(0, 3000), st.integers(0, 3000))
def test_parts_cover_every_row_once(num_workers: int, rows: int, columns: int) -> None:
    with RowParts(num_workers) as parts:
        seen = parts.run((rows, columns), lambda part: list(range(rows)[part]))
    assert [row for part in seen for row in part] == list(range(rows))


def test_an_all_zero_row_stays_zero() -> None:
    zeros = np.zeros((2, 128), dtype=np.float32)
    stored_types: list[StoredType] = ["int8", "int8_symmetric", "int4"]
    for stored_type in stored_types:
        assert np.array_equal(stored(zeros, stored_type), zeros)


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("processor : 0\nflags : fpu avx2 fma\n", True),
        ("processor : 0\nflags : fpu avx2 avx512_vnni\n", False),
        ("processor : 0\nflags : fpu avx2 avx_vnni\n", False),
        ("processor : 0\nFeatures : fp asimd asimddp\n", False),
        ("", False),
    ],
)
def test_only_an_x86_processor_without_vnni_gets_weights_without_zero_points(
    text: str, lacks: bool, tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert lacks_vnni(tmp_path / "cpuinfo") == lacks
    assert not lacks_vnni(tmp_path / "missing")


def test_kernels_held_to_older_instructions_get_weights_as_an_older_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    for held_to, has_dot_products in (("AVX2", False), ("AVX512_CORE", False), ("AVX2_VNNI", not lacks_vnni())):
        monkeypatch.setenv("OV_CPU_MAX_ISA", held_to)
        assert this_processor.__wrapped__().has_integer_dot_products is has_dot_products


@pytest.mark.parametrize(
    ("stored_type", "bound"), [("f32", 1e-5), ("int8", 0.02), ("int8_symmetric", 0.02), ("int4", 0.2)]
)
def test_a_product_is_that_of_the_numbers(stored_type: StoredType, bound: float) -> None:
    random = np.random.RandomState(0)
    weight, bias = random.standard_normal((64, 640)).astype(np.float32), random.standard_normal(64).astype(np.float32)
    x = ops.parameter([-1, 1, 640], np.float32)
    with RowParts() as parts:
        products_node = product(x.output(0), weight, WeightStorage(WeightFormat(stored_type), parts), bias)
        parts.finish()
    model = ov.Model([products_node], [x])
    values = random.standard_normal((5, 1, 640)).astype(np.float32)
    properties = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    products = ov.Core().compile_model(model, "CPU", properties)([values])[0]
    expected = values @ weight.T + bias
    assert np.sqrt(np.mean((products - expected) ** 2) / np.mean(expected**2)) < bound


def test_reading_ahead_never_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 3_000_000)
    read_ahead([tmp_path / "file", tmp_path / "missing"])
    read_ahead([tmp_path / "file", tmp_path])
    for thread in threading.enumerate():
        if thread.name == "read-ahead":
            thread.join()
    assert (tmp_path / "file").stat().st_size == 3_000_000
