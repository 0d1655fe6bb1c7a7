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
from dragoman.models.config import inverse_frequencies, parse_llama_config
from dragoman.models.layers import StoredType, column_widths, embedding, linear
from dragoman.models.processor import lacks_integer_dot_products
from dragoman.models.quantize import quantize_int4, quantize_int8, quantize_int8_symmetric
from dragoman.models.read_ahead import read_ahead
from dragoman.models.weights import Checkpoint
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
        ({"hidden_size": None}, "hidden_size is None"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "'yarn' is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, "'awq' is not supported"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_unsupported_config_is_refused_by_key(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        parse_llama_config(CONFIG | change)


def test_rope_theta_is_read_from_all_places_transformers_has_put_it() -> None:
    for change in ({"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}):
        assert parse_llama_config(CONFIG | change).rope.theta == 5e5


def test_linear_scaling_divides_every_frequency() -> None:
    plain = inverse_frequencies(parse_llama_config(CONFIG))
    scaled = inverse_frequencies(parse_llama_config(CONFIG | {"rope_scaling": {"type": "linear", "factor": 4.0}}))
    assert scaled == pytest.approx([frequency / 4 for frequency in plain])


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda directory: (directory / "config.json").unlink(), "config.json does not exist"),
        (lambda directory: (directory / "config.json").write_text("[1]"), "expected a JSON object"),
        (lambda directory: (directory / "model.safetensors").unlink(), "holds no"),
        (lambda directory: (directory / "model.safetensors").write_bytes(b"junk"), "not a readable safetensors"),
        (lambda directory: _edit_config(directory, architectures=["BertModel"]), "BertModel.*supported: Llama"),
        (lambda directory: _edit_config(directory, num_hidden_layers=3), "no tensor 'model.layers.2"),
        (lambda directory: _edit_config(directory, intermediate_size=512), "config.json implies"),
    ],
    ids=["no config", "not an object", "no weights", "junk weights", "architecture", "missing tensor", "shape"],
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


@pytest.mark.parametrize("largest", [60_000.0, 70_000.0])
def test_embeddings_of_any_size_keep_their_values(largest: float) -> None:
    table = np.array([[0.5, -1.25], [largest, 3.0]], dtype=ml_dtypes.bfloat16)
    token_ids = ops.parameter([-1], np.int64)
    model = ov.Model([embedding(token_ids.output(0), table, "int8")], [token_ids])
    rows = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([np.array([1, 0])])[0]
    assert rows.tolist() == [[table[1].astype(float).tolist()], [table[0].astype(float).tolist()]]


def test_shards_hold_every_tensor_in_bfloat16(tmp_path: Path) -> None:
    with Checkpoint(write_checkpoint(TIED, tmp_path)) as checkpoint:
        assert "lm_head.weight" not in checkpoint
        table = checkpoint.tensor("model.embed_tokens.weight", (TIED.vocab_size, TIED.hidden_size))
        assert table.dtype == ml_dtypes.bfloat16
        assert len(list(checkpoint)) == 2 + TIED.num_layers * 16


matrices = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.RandomState(seed).standard_normal((5, 256)).astype(np.float32) * 10.0 ** (seed % 5 - 3)
)


@given(matrices)
def test_int8_error_is_at_most_about_half_a_step(weight: Any) -> None:
    matrix = quantize_int8(weight)
    assert matrix.zero_points is not None
    restored = (matrix.values.astype(np.float32) - matrix.zero_points) * matrix.scales.astype(np.float32)
    # half a step from rounding, up to one more at the ends where scale (f16) and zero point are rounded too
    assert np.all(np.abs(restored - weight) <= 1.6 * matrix.scales.astype(np.float32))


@given(matrices)
def test_symmetric_int8_error_is_at_most_about_half_a_step(weight: Any) -> None:
    matrix = quantize_int8_symmetric(weight)
    assert matrix.zero_points is None
    restored = matrix.values.astype(np.float32) * matrix.scales.astype(np.float32)
    assert np.all(np.abs(restored - weight) <= 0.6 * matrix.scales.astype(np.float32))


@given(matrices)
def test_int4_error_is_at_most_about_half_a_step(weight: Any) -> None:
    matrix = quantize_int4(weight)
    scales = matrix.scales.astype(np.float32)
    restored = matrix.values * scales
    assert np.all(np.abs(restored - weight.reshape(restored.shape)) <= 1.1 * np.abs(scales))


@pytest.mark.parametrize("quantize", [quantize_int8, quantize_int8_symmetric, quantize_int4])
def test_a_large_matrix_is_compressed_as_its_rows_are(quantize: Any) -> None:
    weight = np.random.RandomState(0).standard_normal((5000, 256)).astype(ml_dtypes.bfloat16)
    whole = quantize(weight)
    for row in (0, 1, 2047, 2048, 2049, 4095, 4096, 4999):
        one = quantize(weight[row : row + 1].astype(np.float32))
        assert np.array_equal(whole.values[row], one.values[0])
        assert np.array_equal(whole.scales[row], one.scales[0])


def test_an_all_zero_row_stays_zero() -> None:
    zeros = np.zeros((2, 128), dtype=np.float32)
    eight, symmetric, four = quantize_int8(zeros), quantize_int8_symmetric(zeros), quantize_int4(zeros)
    assert eight.zero_points is not None
    assert np.all(symmetric.values == 0)
    assert np.all((eight.values.astype(np.float32) - eight.zero_points) * eight.scales == 0)
    assert np.all(four.values * four.scales == 0)


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
    assert lacks_integer_dot_products(tmp_path / "cpuinfo") == lacks
    assert not lacks_integer_dot_products(tmp_path / "missing")


@pytest.mark.parametrize(
    ("num_columns", "max_columns", "widths"),
    [
        (4864, None, [4864]),
        (4864, 1280, [1280, 1280, 1152, 1152]),
        (1280, 1280, [1280]),
        (1408, 1280, [768, 640]),
        (300, 128, [300]),
        (384, 100, [128, 128, 128]),
    ],
)
def test_wide_matrices_are_split_into_nearly_equal_parts(
    num_columns: int, max_columns: int | None, widths: list[int]
) -> None:
    assert column_widths(num_columns, max_columns) == widths


@pytest.mark.parametrize(
    ("stored_type", "bound"), [("f32", 1e-5), ("int8", 0.02), ("int8_symmetric", 0.02), ("int4", 0.2)]
)
def test_a_product_in_parts_is_the_product(stored_type: StoredType, bound: float) -> None:
    random = np.random.RandomState(0)
    weight, bias = random.standard_normal((64, 640)).astype(np.float32), random.standard_normal(64).astype(np.float32)
    x = ops.parameter([-1, 1, 640], np.float32)
    model = ov.Model([linear(x.output(0), weight, stored_type, bias, max_columns=256)], [x])
    values = random.standard_normal((5, 1, 640)).astype(np.float32)
    properties = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    products = ov.Core().compile_model(model, "CPU", properties)([values])[0]
    expected = values @ weight.T + bias
    assert np.sqrt(np.mean((products - expected) ** 2) / np.mean(expected**2)) < bound
    assert sum(node.get_type_name() == "MatMul" for node in model.get_ops()) == 3


def test_reading_ahead_never_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 3_000_000)
    read_ahead([tmp_path / "file", tmp_path / "missing"])
    read_ahead([tmp_path / "file", tmp_path])
    for thread in threading.enumerate():
        if thread.name == "read-ahead":
            thread.join()
    assert (tmp_path / "file").stat().st_size == 3_000_000
