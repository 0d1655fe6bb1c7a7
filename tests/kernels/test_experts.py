"""The operation on layers of experts: each row gets the sum of what its experts make of it, alone as in company."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from openvino import opset13 as ops

from dragoman.kernels.graph import PlacedMatrix, experts, gated_mlp, runtime
from dragoman.kernels.native import Layout, Library
from tests.kernels.packed import Packed, placed, random_matrix

pytestmark = pytest.mark.varies("each instruction set has kernels of its own")

Floats = npt.NDArray[np.float32]

PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 2}
WIDTH, INNER, OUTPUTS = 256, 80, 96
LAYOUTS = {
    "i4z, i4, i8": (
        Layout("i4z", 128, INNER, WIDTH),
        Layout("i4", 64, INNER, WIDTH),
        Layout("i8", INNER, OUTPUTS, INNER),
    ),
    "i8, i5, i4": (Layout("i8", WIDTH, INNER, WIDTH), Layout("i5", 32, INNER, WIDTH), Layout("i4", 80, OUTPUTS, INNER)),
}
SWIGLU = "bounded_swiglu 1.702 7"


class Stacks(NamedTuple):
    """Gate, up and down of each expert, and their biases [experts, outputs], None if there are none."""

    matrices: list[list[Packed]]
    biases: list[Floats] | None

    def nodes(self, index: int | None = None) -> list[PlacedMatrix]:
        """Of all experts, or of one."""
        chosen = slice(None) if index is None else slice(index, index + 1)
        data = [np.concatenate([matrix.data for matrix in stack[chosen]]) for stack in self.matrices]
        biases: list[Any] = [None] * 3
        if self.biases is not None:
            biases = [ops.constant(bias if index is None else bias[index]).output(0) for bias in self.biases]
        return [
            placed(stack[0].layout, one, bias) for one, stack, bias in zip(data, self.matrices, biases, strict=True)
        ]


def random_stacks(kernels: Library, layouts: tuple[Layout, ...], count: int, *, has_biases: bool = False) -> Stacks:
    matrices = [
        [random_matrix(kernels, layout, 100 * part + index) for index in range(count)]
        for part, layout in enumerate(layouts)
    ]
    stream = np.random.default_rng(1)
    biases = [stream.normal(size=(count, layout.outputs)).astype(np.float32) for layout in layouts]
    return Stacks(matrices, biases if has_biases else None)


def compiled(stacks: Stacks, activation: str, kind: Any = np.int64, properties: dict[str, Any] = PROPERTIES) -> Any:
    layouts, count = [stack[0].layout for stack in stacks.matrices], len(stacks.matrices[0])
    inputs = [ops.parameter([-1, 1, layouts[0].columns], np.float32)]
    inputs += [ops.parameter([-1, -1], kind), ops.parameter([-1, -1], np.float32)]
    rows, chosen, shares = (parameter.output(0) for parameter in inputs)
    result = experts(rows, chosen, shares, stacks.nodes(), count, activation)
    return runtime(has_operations=True).compile_model(ov.Model([result], inputs), "CPU", properties)


def apart(stacks: Stacks, activation: str, x: Floats, chosen: npt.NDArray[np.int64], shares: Floats) -> Floats:
    """The same by the operation for single MLPs, one for each expert."""
    each = []
    for index in range(len(stacks.matrices[0])):
        rows = ops.parameter([-1, 1, x.shape[2]], np.float32)
        gate, up, down = stacks.nodes(index)
        graph = ov.Model([gated_mlp(rows.output(0), gate, up, down, activation)], [rows])
        each.append(runtime(has_operations=True).compile_model(graph, "CPU", PROPERTIES)([x])[0])
    total: Floats = np.zeros_like(each[0])
    for column, share in zip(chosen.T, shares.T, strict=True):  # in the order of a row's choice
        total += np.array([each[expert][row] for row, expert in enumerate(column)]) * share[:, None, None]
    return total


def choices(num_rows: int, active: int, num_experts: int) -> tuple[npt.NDArray[np.int64], Floats]:
    stream = np.random.default_rng(num_rows)
    chosen = np.array([stream.permutation(num_experts)[:active] for _ in range(num_rows)], np.int64)
    return chosen, stream.uniform(0.1, 1.0, chosen.shape).astype(np.float32)


def test_each_row_is_the_sum_of_its_experts_gated_mlps_bit_for_bit(kernels: Library) -> None:
    for layouts, activation in zip(LAYOUTS.values(), ("silu", SWIGLU), strict=True):
        stacks = random_stacks(kernels, layouts, 5, has_biases=activation == SWIGLU)
        layer = compiled(stacks, activation)
        x = np.random.default_rng(2).normal(size=(30, 1, WIDTH)).astype(np.float32)
        chosen, shares = choices(30, 3, 5)
        expected = apart(stacks, activation, x, chosen, shares)
        for count in (1, 2, 30):
            found = layer([x[:count], chosen[:count], shares[:count]])[0]
            np.testing.assert_array_equal(found, expected[:count], err_msg=activation)
        twice, shares = np.array([[0, 1, 3], [2, 2, 1], [0, 1, 3], [2, 0, 1]]), shares[:4]
        np.testing.assert_array_equal(layer([x[:4], twice, shares])[0], apart(stacks, activation, x[:4], twice, shares))


def test_a_bounded_swiglu_is_what_its_words_say(kernels: Library) -> None:
    stacks = random_stacks(kernels, LAYOUTS["i8, i5, i4"], 1, has_biases=True)
    assert stacks.biases is not None
    x = np.random.default_rng(3).normal(size=(40, 1, WIDTH)).astype(np.float32)
    gate, up = (
        kernels.product(stack[0].layout, stack[0].data, x[:, 0]).astype(np.float64) + bias
        for stack, bias in zip(stacks.matrices[:2], stacks.biases[:2], strict=True)
    )
    assert min(abs(values).max() for values in (gate, up)) > 7
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    inner = (gate / (1 + np.exp(-1.702 * gate)) * (up + 1)).astype(np.float32)
    down = stacks.matrices[2][0]
    expected = kernels.product(down.layout, down.data, inner) + stacks.biases[2]
    found = compiled(stacks, SWIGLU)([x, np.zeros((40, 1), np.int64), np.ones((40, 1), np.float32)])[0][:, 0]
    # a value of the inner row that falls between two of its 8-bit codes may become either
    np.testing.assert_allclose(found, expected, atol=np.abs(expected).max() * 0.005)


def test_a_row_has_the_same_bits_in_all_company_with_any_number_of_threads_and_type_of_indices(
    kernels: Library,
) -> None:
    stacks = random_stacks(kernels, LAYOUTS["i4z, i4, i8"], 16)
    layer, single = (
        compiled(stacks, "silu"),
        compiled(stacks, "silu", np.int32, PROPERTIES | {"INFERENCE_NUM_THREADS": 1}),
    )
    x = np.random.default_rng(4).normal(size=(150, 1, WIDTH)).astype(np.float32)
    chosen, shares = choices(150, 4, 16)
    chosen[:110, 0] = 5  # more rows than a part has, scattered and beside each other
    together = np.array(layer([x, chosen, shares])[0])
    np.testing.assert_array_equal(single([x, chosen.astype(np.int32), shares])[0], together)
    for begin, end in ((0, 1), (1, 3), (3, 40), (40, 150)):
        rows = slice(begin, end)
        np.testing.assert_array_equal(layer([x[rows], chosen[rows], shares[rows]])[0], together[rows])


def test_more_rows_than_are_computed_at_once_are_all_computed(kernels: Library) -> None:
    layouts = (Layout("i8", 32, 4096, 32), Layout("i8", 32, 4096, 32), Layout("i8", 4096, 2, 4096))
    layer = compiled(random_stacks(kernels, layouts, 2), "relu")
    x = np.random.default_rng(5).normal(size=(70, 1, 32)).astype(np.float32)
    chosen, shares = (
        np.tile([[0, 1]], (70, 32)),
        np.full((70, 64), 0.01, np.float32),
    )  # of a row 2 MB come out of products
    together = np.array(layer([x, chosen, shares])[0])
    for row in (0, 31, 32, 35, 69):
        np.testing.assert_array_equal(layer([x[[row]], chosen[[row]], shares[[row]]])[0][0], together[row])


def test_no_rows_are_an_answer(kernels: Library) -> None:
    layer = compiled(random_stacks(kernels, LAYOUTS["i4z, i4, i8"], 3, has_biases=True), SWIGLU)
    chosen, shares = choices(4, 2, 3)
    assert layer([np.zeros((0, 1, WIDTH), np.float32), chosen[:0], shares[:0]])[0].shape == (0, 1, OUTPUTS)


def test_what_does_not_fit_is_refused_with_what_is_wrong(kernels: Library) -> None:
    stacks = random_stacks(kernels, LAYOUTS["i4z, i4, i8"], 3)
    layer = compiled(stacks, "silu")
    x, shares = np.zeros((2, 1, WIDTH), np.float32), np.ones((2, 2), np.float32)
    for chosen, told in (
        (np.array([[0, 1], [3, 1]]), "expert 3 of 3"),
        (np.array([[0, 1], [2, -1]]), "expert -1 of 3"),
        (np.array([[0], [1]]), "shares"),
        (np.zeros((1, 2), np.int64), "of 2 rows"),
        (np.zeros((2, 0), np.int64), "shares"),
    ):
        with pytest.raises(RuntimeError, match=told):
            layer([x, chosen, shares])
    with pytest.raises(RuntimeError, match="rows choose no experts"):
        layer([x, np.zeros((2, 0), np.int64), shares[:, :0]])
    rows, chosen_node = ops.parameter([-1, 1, WIDTH], np.float32).output(0), ops.parameter([-1, 2], np.int64).output(0)
    share_node, nodes = ops.parameter([-1, 2], np.float32).output(0), stacks.nodes()
    for given, count, activation, told in (
        ((rows, chosen_node, share_node), 4, "silu", "4 of the matrix 80 by 256"),
        ((rows, chosen_node, share_node), 0, "silu", "0 experts"),
        ((rows, chosen_node, share_node), 3, "swosh", "activation 'swosh' is unknown"),
        ((rows, chosen_node, share_node), 3, "bounded_swiglu 1.7", "activation 'bounded_swiglu 1.7' is unknown"),
        ((rows, share_node, share_node), 3, "silu", "chosen experts are f32"),
        ((rows, chosen_node, chosen_node), 3, "silu", "shares are i64"),
        ((share_node, chosen_node, share_node), 3, "silu", "the matrix has 256 columns"),
    ):
        with pytest.raises(RuntimeError, match=told):
            experts(*given, nodes, count, activation)
    wrong = [node._replace(bias=ops.constant(np.zeros((2, 80), np.float32)).output(0)) for node in nodes]
    with pytest.raises(RuntimeError, match="a bias is f32"):
        experts(rows, chosen_node, share_node, wrong, 3, "silu")
