"""Matrices of floats of two bytes: they keep their values, and what is multiplied with them is not rounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dragoman.kernels.native import Layout, Library
from dragoman.models import ModelError, ModelOptions, load_model
from dragoman.models.profile import Processor, kernel_profile
from dragoman.models.sources.base import Array
from dragoman.models.sources.gguf_rows import QuantisedRows
from dragoman.models.storage.constants import WeightFormat, WeightStorage, WeightType
from dragoman.models.storage.packing import packed
from dragoman.models.storage.row_parts import RowParts
from tests.models.test_gguf_families import typed_and_plain
from tests.support.family_logits import logits_of

pytestmark = [pytest.mark.usefixtures("kernels"), pytest.mark.varies("the instruction set is the processor's")]

SHAPE = (37, 99)
TYPES: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
TOKEN_IDS = [(37 * index) % 290 for index in range(64)]


def packed_values(kernels: Library, matrix: Any, form: WeightFormat) -> tuple[Layout, Array]:
    """How the matrix lies in a graph, and the numbers that it has there."""
    with RowParts(2) as parts:
        node = packed(matrix, WeightStorage(form, parts))
        parts.finish()
    data = node.memory.data
    return node.layout, kernels.unpack_rows(node.layout, data, np.arange(len(matrix)))


def test_each_number_is_in_the_graph_as_the_type_has_it(kernels: Library) -> None:
    numbers = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    for name, kind in TYPES.items():
        stored: Any = name
        rounded = numbers.astype(kind)
        in_file = QuantisedRows(np.ascontiguousarray(rounded).view(np.uint8), name.upper(), SHAPE[1])
        kept = WeightFormat("int8", is_ours=True, keeps_file_types=True)
        for what, matrix, form in (
            ("computed in f32", numbers, WeightFormat(stored, is_ours=True)),
            ("stored so", rounded, WeightFormat(stored, is_ours=True)),
            ("in columns", np.asfortranarray(rounded), WeightFormat(stored, is_ours=True)),
            ("in a GGUF file", in_file, kept),
        ):
            layout, found = packed_values(kernels, matrix, form)
            assert layout.format == name, what
            np.testing.assert_array_equal(found, rounded.astype(np.float32), err_msg=f"{name} {what}")


def test_numbers_that_f16_does_not_hold_are_refused(kernels: Library) -> None:
    numbers = np.full(SHAPE, 7e4, np.float32)
    with pytest.raises(ModelError, match=r"a weight matrix of \[37, 99\] cannot be stored: .* too large for f16"):
        packed_values(kernels, numbers, WeightFormat("f16", is_ours=True))


def test_products_are_those_of_the_numbers_in_the_order_of_columns(kernels: Library) -> None:
    generator = np.random.default_rng(1)
    for name, kind in TYPES.items():
        for outputs, columns in ((1, 1), (37, 99), (130, 200)):
            layout = Layout(name, columns, outputs, columns)
            weights = generator.normal(size=(outputs, columns)).astype(kind)
            data = np.zeros(kernels.packed_bytes(layout), np.uint8)
            kernels.pack_floats(layout, 0, weights, data)
            rows = generator.normal(size=(100, columns)).astype(np.float32)
            together = kernels.product(layout, data, rows)
            exact = rows.astype(np.float64) @ weights.astype(np.float64).T
            np.testing.assert_allclose(together, exact, rtol=1e-5, atol=1e-4, err_msg=str(layout))
            for begin, end in ((0, 1), (1, 6), (6, 14), (14, 100)):
                found = kernels.product(layout, data, rows[begin:end])
                np.testing.assert_array_equal(found, together[begin:end], err_msg=f"{layout} {begin}:{end}")


def test_only_rows_of_the_type_are_packed(kernels: Library) -> None:
    layout = Layout("bf16", 99, *SHAPE)
    data = np.zeros(kernels.packed_bytes(layout), np.uint8)
    for rows in (np.zeros(SHAPE, np.float16), np.zeros((37, 98), ml_dtypes.bfloat16)):
        with pytest.raises(ValueError, match="do not fit"):
            kernels.pack_floats(layout, 0, rows, data)


def test_models_of_floats_are_computed_by_them_where_they_are_asked_for(tmp_path: Path) -> None:
    _, plain = typed_and_plain("qwen3", "Q8_0", tmp_path)
    expected = logits_of(load_model(plain, ModelOptions("f32")), TOKEN_IDS)
    stored: WeightType
    for stored in ("bf16", "f16"):
        loaded = load_model(plain, ModelOptions(stored, kernels="own", asks_for_type=True))
        assert (loaded.profile.kernels, loaded.facts.departures) == ("own", ())
        error = np.abs(logits_of(loaded, TOKEN_IDS) - expected).max() / np.abs(expected).max()
        assert error < (0.1 if "bf16" in (stored, loaded.profile.inference_type) else 0.01), stored


def test_files_of_floats_stay_so_unless_another_type_is_asked_for(tmp_path: Path) -> None:
    """Whatever form a family's matrices have: stored by columns, stacked by expert, in parts of one tensor."""
    cases: tuple[tuple[str, WeightType], ...] = (("gpt2", "f16"), ("mixtral", "bf16"), ("phi3", "f16"))
    for name, stored in cases:
        typed, plain = typed_and_plain(name, stored.upper(), tmp_path / name)
        loaded = load_model(typed, ModelOptions(kv_type="u8", kernels="own"))
        assert (loaded.profile.kernels, loaded.facts.departures) == ("own", ()), name
        asked = load_model(plain, ModelOptions(stored, kv_type="u8", kernels="own", asks_for_type=True))
        np.testing.assert_array_equal(logits_of(loaded, TOKEN_IDS), logits_of(asked, TOKEN_IDS), err_msg=name)


def test_floats_are_computed_by_them_where_openvino_would_widen_them() -> None:
    for name, is_arm, has_bf16, has_tiles, has_states, kernels in (
        ("AVX2", False, False, False, False, "own"),
        ("bf16", False, True, False, False, "openvino"),
        ("bf16, states that are computed in f32", False, True, False, True, "own"),
        ("AMX", False, True, True, False, "openvino"),
        ("Arm", True, False, False, False, "openvino"),
    ):
        processor = Processor(name, ("BF16",) if has_bf16 else (), is_arm, has_tiles=has_tiles)
        stored: WeightType
        for stored in ("bf16", "f16"):
            profile = kernel_profile(ModelOptions(stored), processor, has_states=has_states)
            assert (profile.kernels, profile.weights.is_ours) == (kernels, kernels == "own"), (name, stored)
            asked = kernel_profile(ModelOptions(stored, kernels="own"), processor, has_states=has_states)
            assert asked.kernels == "own", (name, stored)
        assert kernel_profile(ModelOptions("f32", kernels="own"), processor).kernels == "openvino"
