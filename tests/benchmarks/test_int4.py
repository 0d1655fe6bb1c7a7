"""int4 loses at least a third less than rounding to nearest, as the benchmark measures it."""

from __future__ import annotations

import io
from contextlib import ExitStack

import numpy as np
import pytest

from benchmarks.int4 import DEMO, GROUP_SIZE, WAYS, measure, nearest, subject_of
from dragoman.cli.progress import ProgressDisplay


@pytest.mark.full("measures what int4 loses for seconds; tests/models/test_parity.py bounds it")
@pytest.mark.parametrize(("name", "num_tokens"), [(DEMO, 2048), ("qwen3-0.6b", 256)])
def test_int4_loses_a_third_less_than_rounding_to_nearest(name: str, num_tokens: int) -> None:
    shown = io.StringIO()
    with ExitStack() as stack:
        found = measure(subject_of(name, 1, num_tokens, stack), ProgressDisplay(shown), name)
    assert 0 < found["int4"] < found["nearest"] * 2 / 3
    assert found["nearest_8_bit_head_and_values"] < found["nearest"]
    assert found["ratio"] == found["int4"] / found["nearest"]
    assert [line.strip().partition(":")[0] for line in shown.getvalue().splitlines()] == [
        f"{name}, {way.name}" for way in WAYS
    ]


def test_each_value_becomes_the_nearest_step_of_its_group() -> None:
    weight = np.random.RandomState(0).standard_normal((3, 2 * GROUP_SIZE)).astype(np.float32)
    weight[1, :GROUP_SIZE] = 0
    packed = nearest(weight)
    assert (packed.bits, packed.group_size, packed.zero_points) == (4, GROUP_SIZE, None)
    steps = np.abs(packed.scales.astype(np.float32)).repeat(GROUP_SIZE, axis=1)
    extreme = np.abs(weight).reshape(3, -1, GROUP_SIZE).max(axis=2).repeat(GROUP_SIZE, axis=1)
    error = np.abs(packed.unpacked() - weight)
    # the end of the other side is one step short of the farthest value
    assert np.all(error <= np.where(np.abs(weight) > extreme - steps, 1.01, 0.51) * steps)
    assert np.all(packed.unpacked()[1, :GROUP_SIZE] == 0)
