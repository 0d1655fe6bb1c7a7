"""Operations of the library of kernels in graphs: what they compute, what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from openvino import opset13 as ops

from dragoman.kernels.graph import PlacedMatrix, gated_mlp, products, runtime, table_rows
from dragoman.kernels.native import Layout, Library, Memory
from tests.kernels.packed import Packed, placed, random_matrix

pytestmark = pytest.mark.varies("each instruction set has kernels of its own")

LAYOUTS = (
    Layout("i4z", 128, 100, 256),
    Layout("i4", 32, 1, 64),
    Layout("i5", 32, 33, 96),
    Layout("i8", 96, 40, 209),
    Layout("i8", 50, 17, 50),
    Layout("bf16", 32, 35, 77),
    Layout("f16", 32, 64, 128),
)
PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32"}


def graph_of(matrix: Packed, bias: npt.NDArray[np.float32] | None = None) -> Any:
    """A graph with a product, and with rows by i32 and by i64."""
    rows = ops.parameter([-1, -1, matrix.layout.columns], np.float32)
    indices = [ops.parameter([-1], kind) for kind in (np.int32, np.int64)]
    added = None if bias is None else ops.constant(bias).output(0)
    results = products(rows.output(0), [matrix.placed(added)])
    results += [table_rows(one.output(0), matrix.placed()) for one in indices]
    return ov.Model(results, [rows, *indices])


def inputs_of(rows: npt.NDArray[np.float32], indices: list[int]) -> list[npt.NDArray[Any]]:
    return [rows[None], np.array(indices, np.int32), np.array(indices, np.int64)]


def test_a_graph_computes_what_the_entry_point_does_and_nearly_what_the_stored_numbers_say(kernels: Library) -> None:
    core = runtime(has_operations=True)
    generator = np.random.default_rng(1)
    for layout in LAYOUTS:
        matrix = random_matrix(kernels, layout)
        bias = generator.normal(size=layout.outputs).astype(np.float32)
        compiled = core.compile_model(graph_of(matrix, bias), "CPU", PROPERTIES)
        last = layout.outputs - 1
        for count in (1, 2, 19):
            rows = generator.normal(size=(count, layout.columns)).astype(np.float32)
            sums, *found = compiled(inputs_of(rows, [last, 0, last])).values()
            np.testing.assert_array_equal(
                sums[0], kernels.product(layout, matrix.data, rows) + bias, err_msg=str(layout)
            )
            exact = rows.astype(np.float64) @ matrix.weights.astype(np.float64).T + bias
            rounding = np.abs(rows).max() / 254 * np.abs(matrix.weights).sum(1)  # of activations, to 8 bits
            assert (np.abs(sums[0] - exact) <= rounding + 1e-3).all(), layout
            for one in found:
                np.testing.assert_allclose(one, matrix.weights[[last, 0, last]], rtol=1e-6, atol=1e-6)


def test_a_row_has_the_same_bits_in_all_company(kernels: Library) -> None:
    matrix = random_matrix(kernels, Layout("i4z", 32, 700, 320))
    compiled = runtime(has_operations=True).compile_model(graph_of(matrix), "CPU", PROPERTIES)
    rows = np.random.default_rng(2).normal(size=(130, 320)).astype(np.float32)
    together = np.array(compiled(inputs_of(rows, []))[0][0])
    for begin, end in ((0, 1), (1, 3), (3, 40), (40, 130)):
        np.testing.assert_array_equal(compiled(inputs_of(rows[begin:end], []))[0][0], together[begin:end])


def test_no_rows_are_an_answer(kernels: Library) -> None:
    matrix = random_matrix(kernels, LAYOUTS[0])
    compiled = runtime(has_operations=True).compile_model(graph_of(matrix), "CPU", PROPERTIES)
    results = compiled([np.zeros((0, 3, 256), np.float32), np.zeros(0, np.int32), np.zeros(0, np.int64)])
    assert [one.shape for one in results.values()] == [(0, 3, 100), (0, 256), (0, 256)]


def test_memory_lasts_as_long_as_an_operation_or_an_array_has_it(kernels: Library) -> None:
    matrix = random_matrix(kernels, LAYOUTS[0])
    rows = np.random.default_rng(3).normal(size=(5, 256)).astype(np.float32)
    parameter = ops.parameter([-1, 256], np.float32)
    one = matrix.placed()
    (product,) = products(parameter.output(0), [one])
    number = one.memory.number
    del one  # the operation has it
    compiled = runtime(has_operations=True).compile_model(ov.Model([product], [parameter]), "CPU", PROPERTIES)
    np.testing.assert_array_equal(compiled([rows])[0], kernels.product(matrix.layout, matrix.data, rows))
    gone = PlacedMatrix(Memory(np.zeros(0, np.uint8), number), matrix.layout)
    with pytest.raises(RuntimeError, match=f"there is no memory {number} any more"):
        products(parameter.output(0), [gone])


def test_what_does_not_fit_is_refused_with_both_sizes(kernels: Library) -> None:
    matrix = random_matrix(kernels, LAYOUTS[0])
    core = runtime(has_operations=True)
    compiled = core.compile_model(graph_of(matrix), "CPU", PROPERTIES)
    rows = np.zeros((1, 256), np.float32)
    for index in (-1, 100):
        with pytest.raises(RuntimeError, match=f"row {index} of a table of 100"):
            compiled(inputs_of(rows, [index]))
    narrow = ops.parameter([-1, 255], np.float32).output(0)
    wide = ops.parameter([-1, 256], np.float32).output(0)
    bias = ops.constant(np.zeros(9, np.float32)).output(0)
    for layout, given, added, told in (
        (Layout("i9", 128, 100, 256), wide, None, "no matrix is packed as 'i9 128 100 256 "),
        (Layout("i4z", 33, 100, 256), wide, None, "no matrix is packed as 'i4z 33 100 256 "),
        (Layout("q4_k", 32, 100, 256), wide, None, "no matrix is packed as 'q4_k 32 100 256 "),
        (Layout("i4z", 128, 1000, 256), wide, None, f"from 0 on there are {matrix.data.nbytes}"),
        (matrix.layout, narrow, None, "the matrix has 256 columns"),
        (matrix.layout, wide, bias, "a bias is f32"),
    ):
        with pytest.raises(RuntimeError, match=told):
            products(given, [placed(layout, matrix.data, added)])


def test_several_products_of_one_row_are_those_of_each(kernels: Library) -> None:
    layouts = (Layout("i4z", 128, 100, 256), Layout("i8", 256, 33, 256), Layout("f16", 32, 16, 256))
    matrices = [random_matrix(kernels, layout) for layout in layouts]
    rows = ops.parameter([-1, 256], np.float32)
    nodes = [matrix.placed() for matrix in matrices]
    graph = ov.Model(products(rows.output(0), nodes), [rows])
    compiled = runtime(has_operations=True).compile_model(graph, "CPU", PROPERTIES)
    for count in (0, 1, 40):
        given = np.random.default_rng(4).normal(size=(count, 256)).astype(np.float32)
        for found, matrix in zip(compiled([given]).values(), matrices, strict=True):
            np.testing.assert_array_equal(found, kernels.product(matrix.layout, matrix.data, given))


def test_gated_mlps_are_their_products_with_the_activation_between(kernels: Library) -> None:
    activations: dict[str, Callable[[Any], Any]] = {
        "silu": lambda x: x / (1 + np.exp(-x)),
        "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
        "relu": lambda x: np.maximum(x, 0),
        "relu2": lambda x: np.maximum(x, 0) ** 2,
        "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2,
        "gelu_tanh": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    }
    layouts = (Layout("i4z", 64, 70, 128), Layout("i4", 64, 70, 128), Layout("i8", 70, 50, 70))
    matrices = [random_matrix(kernels, layout, seed) for seed, layout in enumerate(layouts)]
    nodes = [matrix.placed() for matrix in matrices]
    given = np.random.default_rng(5).normal(size=(40, 128)).astype(np.float32) * np.float32(1.5)
    gate, up = (kernels.product(matrix.layout, matrix.data, given).astype(np.float64) for matrix in matrices[:2])
    assert gate.min() < -20
    assert gate.max() > 20
    for name, activation in activations.items():
        rows = ops.parameter([-1, 128], np.float32)
        graph = ov.Model([gated_mlp(rows.output(0), nodes[0], nodes[1], nodes[2], name)], [rows])
        compiled = runtime(has_operations=True).compile_model(graph, "CPU", PROPERTIES)
        inner = (activation(gate) * up).astype(np.float32)
        expected = kernels.product(matrices[2].layout, matrices[2].data, inner)
        together = compiled([given])[0]
        # a value of the inner row that falls between two of its 8-bit codes may become either
        np.testing.assert_allclose(together, expected, atol=np.abs(expected).max() * 0.005, err_msg=name)
        np.testing.assert_array_equal(compiled([given[7:8]])[0], together[7:8])


def test_entry_points_get_only_what_fits(kernels: Library) -> None:
    matrix = random_matrix(kernels, LAYOUTS[0])
    rows = np.zeros((1, 256), np.float32)
    with pytest.raises(ValueError, match="do not fit"):
        kernels.product(matrix.layout, matrix.data, rows[:, 1:])
    with pytest.raises(ValueError, match="packed bytes"):
        kernels.product(matrix.layout, matrix.data[1:], rows)
    with pytest.raises(IndexError, match="rows 0 to 100"):
        kernels.unpack_rows(matrix.layout, matrix.data, np.array([0, 100]))
    for layout in (Layout("i9", 32, 1, 32), Layout("i8", 31, 1, 32), Layout("i8", 32, 0, 32)):
        with pytest.raises(ValueError, match="no matrix is packed as"):
            kernels.packed_bytes(layout)
