"""A tower in parts: together they compute what the whole graph does, whatever crosses from one to another."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from dragoman.models.vision.blocks import end_of_part, parts_of

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def graph() -> ov.Model:
    """Two layers that read angles of the input and a constant, a result of the first and one of the last."""
    x = ops.parameter([-1, 3], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    scale = ops.constant(np.array([2.0, 3.0, 4.0], dtype=np.float32))
    angles = ops.cos(x).output(0)
    first = end_of_part(ops.add(ops.multiply(x, scale), angles).output(0))
    second = end_of_part(ops.add(ops.multiply(ops.multiply(first, scale), x), angles).output(0))
    early, last = ops.relu(first).output(0), ops.negative(ops.add(second, first)).output(0)
    early.set_names({"early"})
    last.set_names({"last"})
    return ov.Model([early, last], [x], "tower")


def run(parts: list[ov.Model]) -> dict[str, Any]:
    values: dict[str, Any] = {"x": X}
    for part in parts:
        compiled = ov.Core().compile_model(part, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        found = compiled({place.any_name: values[place.any_name] for place in compiled.inputs})
        values |= {place.any_name: found[place] for place in compiled.outputs}
    return values


def test_the_parts_compute_what_the_whole_does() -> None:
    parts = parts_of(graph())
    assert len(parts) == 3
    whole, cut = run([graph()]), run(parts)
    assert np.array_equal(cut["early"], whole["early"])
    assert np.array_equal(cut["last"], whole["last"])


def test_a_graph_without_ends_is_one_part() -> None:
    x = ops.parameter([2], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    (part,) = parts_of(ov.Model([ops.relu(x).output(0)], [x], "tower"))
    assert [place.any_name for place in part.inputs] == ["x"]


def test_parts_of_graphs_that_are_built_alike_fit_together() -> None:
    """Some of them may be read from files that an earlier process wrote."""
    before, now = parts_of(graph()), parts_of(graph())
    mixed = [before[0], *now[1:]]
    assert np.array_equal(run(mixed)["last"], run(before)["last"])
