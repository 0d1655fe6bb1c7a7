"""Operations on what a layer computes before and behind attention equal their parts; a row has the same bits in company."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from openvino import opset13 as ops

from dragoman.kernels.graph import PlacedMatrix, gated_mlp, layers, normed_products, output_and_mlp, runtime
from dragoman.kernels.native import Layout, Library
from tests.kernels.packed import Packed, random_matrix
from tests.support.tables import Rows

pytestmark = pytest.mark.varies("each instruction set has kernels of its own")

Floats = npt.NDArray[np.float32]

PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32"}
COUNTS = (0, 1, 3, 19)
LANES = 16


class Norm(NamedTuple):
    """A norm of each so many values; without a weight there is none."""

    weight: Floats | None
    epsilon: float = 0.0

    @property
    def said(self) -> str:
        return "0 0" if self.weight is None else f"{len(self.weight)} {self.epsilon!r}"

    def __call__(self, x: Floats) -> Floats:
        """The operations of native/layer.cpp in the same order."""
        if self.weight is None:
            return x
        size = len(self.weight)
        values = x.reshape(-1, size)
        padded = np.pad(values, ((0, 0), (0, -size % LANES)))
        squares = (padded * padded).reshape(len(values), -(-size // LANES), LANES)
        sums = np.zeros((len(values), LANES), np.float32)
        for index in range(squares.shape[1]):
            sums += squares[:, index]
        while sums.shape[1] > 1:
            sums = sums[:, : sums.shape[1] // 2] + sums[:, sums.shape[1] // 2 :]
        inverse = np.float32(1) / np.sqrt(sums / np.float32(size) + np.float32(self.epsilon))
        return np.asarray((values * inverse * self.weight).reshape(x.shape), np.float32)


def turned(x: Floats, head: int, cos: Floats, sin: Floats) -> Floats:
    size = cos.shape[1]
    heads = x.reshape(len(x), x.shape[1] // head, head).copy()
    first, second = heads[..., : size // 2].copy(), heads[..., size // 2 : size].copy()
    by_head = [values.reshape(len(x), 1, 2, size // 2) for values in (cos, sin)]
    heads[..., : size // 2] = first * by_head[0][:, :, 0] - second * by_head[1][:, :, 0]
    heads[..., size // 2 : size] = second * by_head[0][:, :, 1] + first * by_head[1][:, :, 1]
    return heads.reshape(x.shape)


def floats(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def text_of(placed: Sequence[PlacedMatrix]) -> str:
    return ",".join(one.attribute for one in placed)


def compiled(results: Any, parameters: list[Any]) -> Any:
    return runtime(has_operations=True).compile_model(ov.Model(results, parameters), "CPU", PROPERTIES)


def check_company(run: Any, inputs: list[Floats], together: list[Floats]) -> None:
    """Rows have the same bits alone as among all."""
    for begin, end in ((0, 1), (1, 3), (3, len(inputs[0]))):
        for found, all_rows in zip(run([one[begin:end] for one in inputs]).values(), together, strict=True):
            np.testing.assert_array_equal(found, all_rows[begin:end])


class Heads(NamedTuple):
    """What a product goes through: a norm, heads of so many values of which so many are turned."""

    norm: Norm
    head: int
    turned: int = 0


QUERIES = (
    # norms of heads, and a part of each turned; values as they are
    (
        Norm(floats(1, 209), 1e-6),
        (Layout("i4z", 96, 96, 209), Layout("i4", 32, 48, 209), Layout("i8", 209, 33, 209)),
        (Heads(Norm(floats(2, 24), 1e-5), 24, 16), Heads(Norm(floats(3, 24), 0.5), 24, 16), Heads(Norm(None), 33)),
        True,
    ),
    # one norm of all heads; no norm of the rows, no biases
    (
        Norm(None),
        (Layout("i8", 70, 40, 70), Layout("i5", 32, 20, 70)),
        (Heads(Norm(floats(4, 40), 1e-6), 20, 20), Heads(Norm(None), 20, 20)),
        False,
    ),
    # a norm of the rows alone
    (Norm(floats(5, 64), 1e-6), (Layout("i4z", 32, 1000, 64),), (Heads(Norm(None), 1000),), False),
)


@pytest.mark.parametrize("case", range(len(QUERIES)))
def test_normed_products_are_norms_products_and_turning(case: int, kernels: Library) -> None:
    norm, layouts, heads, has_bias = QUERIES[case]
    matrices = [random_matrix(kernels, layout, seed) for seed, layout in enumerate(layouts)]
    biases = [floats(7 + seed, layout.outputs) if has_bias else None for seed, layout in enumerate(layouts)]
    vectors = [norm.weight]
    for bias, one in zip(biases, heads, strict=True):
        vectors += [bias, one.norm.weight]
    numbers = np.concatenate([vector for vector in [np.zeros(0, np.float32), *vectors] if vector is not None])
    how = " ".join([norm.said, str(int(has_bias)), *(f"{one.norm.said} {one.head} {one.turned}" for one in heads)])
    size = max(one.turned for one in heads)
    rows = ops.parameter([-1, 1, layouts[0].columns], np.float32)
    angles = [ops.parameter([-1, 1, 1, size], np.float32) for _ in range(2 if size else 0)]
    placed = [matrix.placed() for matrix in matrices]
    results = normed_products(
        rows.output(0),
        text_of(placed),
        how,
        ops.constant(numbers).output(0),
        [angle.output(0) for angle in angles],
    )
    run = compiled(results, [rows, *angles])
    for count in COUNTS:
        x = floats(20 + count, count, layouts[0].columns)
        cos, sin = floats(50, count, size), floats(51, count, size)
        inputs = [x[:, None], *[values[:, None, None] for values in (cos, sin) if size]]
        found = [np.array(values) for values in run(inputs).values()]
        for values, matrix, bias, one in zip(found, matrices, biases, heads, strict=True):
            expected = kernels.product(matrix.layout, matrix.data, norm(x))
            expected = one.norm(expected if bias is None else expected + bias)
            expected = turned(expected, one.head, cos, sin) if one.turned else expected
            np.testing.assert_array_equal(values, expected, err_msg=f"{count} rows, {matrix.layout}")
    check_company(run, inputs, found)


class Behind(NamedTuple):
    """What follows attention. `biases`: of the output's product, of the MLP's."""

    layouts: tuple[Layout, Layout, Layout, Layout]
    norms: tuple[Norm, Norm, Norm]
    scale: float = 1.0
    biases: tuple[bool, bool] = (False, False)

    def how(self) -> str:
        return " ".join(
            [repr(self.scale), *(str(int(one)) for one in self.biases), *(norm.said for norm in self.norms)]
        )


BEHIND = (
    Behind(
        (Layout("i4z", 128, 70, 256), Layout("i4", 96, 90, 70), Layout("i8", 70, 90, 70), Layout("i8", 90, 70, 90)),
        (Norm(None), Norm(floats(1, 70), 1e-6), Norm(None)),
    ),
    Behind(
        (Layout("i4z", 64, 64, 33), Layout("i4", 32, 70, 64), Layout("i5", 32, 70, 64), Layout("i4z", 32, 64, 70)),
        (Norm(floats(2, 64), 1e-6), Norm(floats(3, 64), 1e-5), Norm(floats(4, 64), 0.25)),
        scale=0.22,
        biases=(True, True),
    ),
    Behind(
        (Layout("i8", 64, 64, 64), Layout("i8", 64, 1, 64), Layout("i8", 64, 1, 64), Layout("i8", 1, 64, 1)),
        (Norm(floats(5, 64), 1e-6), Norm(None), Norm(floats(6, 64), 1e-6)),
        biases=(True, False),
    ),
)


def graph_behind(behind: Behind, matrices: Sequence[Packed], numbers: Floats, how: str | None = None) -> Any:
    rows = ops.parameter([-1, behind.layouts[0].columns], np.float32)
    residual = ops.parameter([-1, 1, behind.layouts[0].outputs], np.float32)
    placed = [matrix.placed() for matrix in matrices]
    result = output_and_mlp(
        rows.output(0),
        residual.output(0),
        text_of(placed),
        behind.how() if how is None else how,
        "gelu_tanh",
        ops.constant(numbers).output(0),
    )
    return compiled([result], [rows, residual])


@pytest.mark.parametrize("case", range(len(BEHIND)))
def test_what_follows_attention_is_its_products_norms_and_sums(case: int, kernels: Library) -> None:
    behind = BEHIND[case]
    matrices = [random_matrix(kernels, layout, seed) for seed, layout in enumerate(behind.layouts)]
    biases = [
        floats(30 + index, layout.outputs) if behind.biases[index > 0] else None
        for index, layout in enumerate(behind.layouts)
    ]
    vectors = [*biases, *(norm.weight for norm in behind.norms)]
    numbers = np.concatenate([vector for vector in [np.zeros(0, np.float32), *vectors] if vector is not None])
    run = graph_behind(behind, matrices, numbers)
    hidden = ops.parameter([-1, behind.layouts[1].columns], np.float32)
    nodes = [
        matrix.placed(None if bias is None else ops.constant(bias).output(0))
        for matrix, bias in zip(matrices[1:], biases[1:], strict=True)
    ]
    mlp = compiled([gated_mlp(hidden.output(0), nodes[0], nodes[1], nodes[2], "gelu_tanh")], [hidden])
    scale = np.float32(behind.scale)
    for count in COUNTS:
        x, residual = floats(40 + count, count, behind.layouts[0].columns), floats(60, count, behind.layouts[0].outputs)
        found = np.array(run([x, residual[:, None]])[0])
        assert found.shape == (count, 1, behind.layouts[0].outputs)
        mixed = kernels.product(behind.layouts[0], matrices[0].data, x)
        between = residual + scale * behind.norms[0](mixed if biases[0] is None else mixed + biases[0])
        changed = np.array(mlp([behind.norms[1](between)])[0])
        expected = between + scale * behind.norms[2](changed)
        np.testing.assert_array_equal(found[:, 0], expected, err_msg=f"{count} rows")
    check_company(run, [x, residual[:, None]], [found])


def test_what_does_not_fit_is_refused(kernels: Library) -> None:
    behind = BEHIND[0]
    matrices = [random_matrix(kernels, layout, seed) for seed, layout in enumerate(behind.layouts)]
    numbers = np.ones(70, np.float32)
    inputs = [floats(1, 2, 256), floats(2, 2, 1, 70)]
    for vector, said in (
        (numbers[1:], "69 numbers left, not 70"),
        (np.ones(71, np.float32), "numbers too many"),
    ):
        with pytest.raises(RuntimeError, match=said):
            graph_behind(behind, matrices, vector)(inputs)
    with pytest.raises(RuntimeError, match="residual"):
        graph_behind(behind, matrices, numbers)([inputs[0], inputs[1][:1]])
    for how, said in (("1 0", "cannot be '1 0'"), ("1 0 0 0 0 69 0 0 0", "a norm has 69 columns, not 70")):
        with pytest.raises(RuntimeError, match=said):
            graph_behind(behind, matrices, numbers, how)
    rows, narrow = (
        ops.parameter([-1, 1, 70], np.float32).output(0),
        ops.parameter([-1, 1, 1, 6], np.float32).output(0),
    )
    placed = [matrices[1].placed()]
    for how, angles, said in (
        ("70 1e-6 0 0 0 45 8", [narrow, narrow], "angles are f32"),
        ("70 1e-6 0 0 0 40 6", [narrow, narrow], "90 outputs do not fit heads of 40"),
        ("70 1e-6 0 0 0 45 6", [], "1 matrices and 2 inputs"),
        ("69 1e-6 0 0 0 45 0", [], "the norm has 69 columns, a matrix 70"),
    ):
        with pytest.raises(RuntimeError, match=said):
            normed_products(rows, text_of(placed), how, ops.constant(numbers), angles)


LAYER = "0 0|16 1e-6 0 0 0 8 8 0 0 8 8 0 0 8 0|2 1 8 8 0.25 0 0 f32 0 0 0|1.0 0 0 0 0 16 1e-6 0 0|silu"
ONE = "1 1 1 0"  # kinds, angles; rows are kept, no types


class Layers(NamedTuple):
    """Two layers of two heads of 8 numbers over rows of 16, as one node. `run`: of the inputs, by their names."""

    how: str = ";".join([ONE, LAYER, LAYER])
    num_numbers: int = 64

    def run(self, kernels: Library, **changed: Any) -> Floats:
        """The rows that a step of two tokens gives."""
        shapes = [(16, 16), (8, 16), (8, 16), (16, 16), (24, 16), (24, 16), (16, 24)]
        matrices = [random_matrix(kernels, Layout("i8", columns, rows, columns), 3) for rows, columns in shapes] * 2
        placed = [matrix.placed() for matrix in matrices]
        widths = kernels.block_bytes("f32", 8, 8)
        values: dict[str, Any] = {
            "x": floats(1, 2, 1, 16),
            "positions": np.arange(2),
            "begins": np.array([0, 2], np.int32),
            "past": np.zeros(1, np.int32),
            "blocks": np.zeros(1, np.int32),
            "block_begins": np.array([0, 1], np.int32),
            "cos": floats(2, 2, 1, 1, 8),
            "sin": floats(3, 2, 1, 1, 8),
            "rows": np.array([1]),
            **{f"cache.{index}": np.zeros((1, 1, widths[index % 2]), np.uint8) for index in range(4)},
            **changed,
        }
        nodes = {}
        for name, value in values.items():
            widths_of = [-1, *value.shape[1:]]
            nodes[name] = ops.parameter(widths_of, value.dtype, name=name)
        numbers = ops.constant(np.ones(self.num_numbers, np.float32))
        at = {name: node.output(0) for name, node in nodes.items()}
        result = layers(
            [at["x"], numbers.output(0), at["positions"], at["begins"]],
            [at[f"cache.{index}"] for index in range(4)],
            [at["past"], at["blocks"], at["block_begins"]],
            [at["cos"], at["sin"]],
            [at["rows"]],
            text_of(placed),
            self.how,
        )
        return np.array(compiled([result], list(nodes.values()))(list(values.values()))[0])


def test_layers_that_do_not_fit_are_refused(kernels: Library) -> None:
    right = Layers()
    assert right.run(kernels).shape == (1, 1, 16)
    assert right.run(kernels, rows=np.zeros(0, np.int64)).shape == (0, 1, 16)
    with Rows() as rows:
        for changed, said in (
            ({"rows": np.array([2])}, "row 2 of 2 is kept"),
            ({"rows": np.array([-1])}, "row -1 of 2 is kept"),
            ({"positions": np.arange(3)}, "inputs of layers do not fit each other"),
            ({"past": np.zeros(2, np.int32)}, "inputs of layers do not fit each other"),
            ({"blocks": np.ones(1, np.int32)}, "a row has a block that there is not"),
            ({"begins": np.array([0, 3], np.int32)}, "rows do not end where tokens do"),
            ({"cos": floats(2, 3, 1, 1, 8)}, "angles are .*, not of 2 rows"),
            ({"cache.2": np.zeros((1, 1, 8), np.uint8)}, "input 6 is"),
            ({"begins": np.array([0, 2])}, "input 3 is"),
        ):
            with rows.row(said), pytest.raises(RuntimeError, match=said):
                right.run(kernels, **changed)
        for how, said in (
            (f"1 1 1 0;{LAYER}", "14 matrices and 14 inputs"),
            (f"2 1 1 0;{LAYER};{LAYER}", "14 matrices and 14 inputs"),
            (f"{ONE};{LAYER};1{LAYER[1:]}", "cannot be"),
            (f"{ONE};{LAYER};0", "cannot be"),
            (f"{ONE};{LAYER};0 1{LAYER[3:]}", "angles or types that are no inputs"),
            (f"{ONE};{LAYER};{LAYER.replace('|2 1', '|4 1')}", "do not fit attention"),
            (f"{ONE};{LAYER};{LAYER.replace('f32 0 0 0', 'f32 0 0 1')}", "angles or types that are no inputs"),
            (f"{ONE};{LAYER};{LAYER.replace('silu', 'sigh')}", "activation 'sigh' is unknown"),
        ):
            with rows.row(how), pytest.raises(RuntimeError, match=said):
                right._replace(how=how).run(kernels)
        for count, said in ((63, "numbers left, not 16"), (65, "1 numbers too many")):
            with rows.row(said), pytest.raises(RuntimeError, match=said):
                right._replace(num_numbers=count).run(kernels)
