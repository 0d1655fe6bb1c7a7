"""Compression to few bits in groups: what is lost, and what is not."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.models.storage.groups import INT4_GROUP_SIZE, pack_int4, put_int4, quantize_groups

GROUP = INT4_GROUP_SIZE

matrices = st.builds(
    lambda stream, power, tail: (
        np.random.RandomState(stream).standard_t(tail, (4, 2 * GROUP)).astype(np.float32) * np.float32(10.0**power)
    ),
    st.integers(0, 2**32 - 1),
    st.integers(-2, 2),
    st.sampled_from([3, 8, 100]),
)


def error_of(weight: Any, restored: Any) -> Any:
    """The square error of each group."""
    return np.square(weight.astype(np.float64) - restored).reshape(len(weight), -1, GROUP).sum(axis=2)


def rounded_to_nearest(weight: Any) -> Any:
    """Symmetric integers of four bits, of which the value that is farthest from zero becomes the lowest one."""
    grouped = weight.reshape(len(weight), -1, GROUP)
    extreme = np.take_along_axis(grouped, np.abs(grouped).argmax(axis=2, keepdims=True), axis=2)
    scales = (extreme / -8.0).astype(np.float16).astype(np.float32)
    return (np.clip(np.rint(grouped / scales), -8, 7) * scales).reshape(weight.shape)


@given(matrices)
def test_no_group_loses_more_than_by_rounding_to_nearest(weight: Any) -> None:
    found = error_of(weight, quantize_groups(weight).unpacked())
    # scales are stored as f16, which may be a little worse than what was found
    assert np.all(found <= error_of(weight, rounded_to_nearest(weight)) * 1.01)


def test_random_matrices_lose_an_eighth_less_and_those_with_far_values_a_third() -> None:
    stream = np.random.RandomState(0)
    for weight, share in (
        (stream.standard_normal((256, 512)).astype(np.float32), 0.88),
        (stream.standard_t(4, (256, 512)).astype(np.float32), 0.70),
    ):
        found = error_of(weight, quantize_groups(weight).unpacked()).sum()
        assert found < share * error_of(weight, rounded_to_nearest(weight)).sum()


@given(st.integers(0, 2**32 - 1), st.integers(-9, 3), st.sampled_from([7, 8]))
def test_what_has_sixteen_levels_is_kept_exactly(stream: int, power: int, zero_point: int) -> None:
    integers = np.random.RandomState(stream).randint(0, 16, (3, GROUP)) - zero_point
    integers[:, 0], integers[:, 1] = -zero_point, 15 - zero_point
    weight = (integers * 2.0**power).astype(np.float32)
    assert np.array_equal(quantize_groups(weight).unpacked(), weight)


def test_zeros_and_lone_values_are_kept() -> None:
    weight = np.zeros((3, GROUP), np.float32)
    weight[1, 5], weight[2, 7] = 3.0, -0.5
    assert np.allclose(quantize_groups(weight).unpacked(), weight, rtol=1e-3)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_what_is_no_number_or_too_large_is_refused(wrong: float, dtype: Any) -> None:
    weight = np.ones((2, GROUP), np.float32)
    weight[1, 3] = wrong
    with pytest.raises(ValueError, match="not finite, or too large"):
        quantize_groups(weight.astype(dtype))


def test_columns_that_are_not_whole_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="100 input columns are not a multiple of the group size 128"):
        quantize_groups(np.ones((2, 100), np.float32))


def test_the_error_of_important_columns_is_smaller() -> None:
    weight = np.random.RandomState(1).standard_normal((64, GROUP)).astype(np.float32)
    importance = np.ones(GROUP, np.float32)
    importance[:8] = 1000.0
    plain = np.square(quantize_groups(weight).unpacked() - weight)[:, :8].sum()
    careful = np.square(quantize_groups(weight, importance=importance).unpacked() - weight)[:, :8].sum()
    assert careful < 0.9 * plain


def test_eight_bits_lose_a_hundredth_of_what_four_lose() -> None:
    weight = np.random.RandomState(2).standard_normal((16, 256)).astype(np.float32)
    lost = [error_of(weight, quantize_groups(weight, bits=bits, group_size=64).unpacked()).sum() for bits in (4, 8)]
    assert lost[1] < lost[0] / 100


@given(st.lists(st.integers(0, 15), min_size=1, max_size=9), st.integers(0, 9))
def test_values_are_put_among_others_without_touching_them(values: list[int], begin: int) -> None:
    before = np.arange(20) % 16
    packed = pack_int4(before.astype(np.uint8))
    put_int4(packed, begin, np.array(values, np.uint8))
    after = before.copy()
    after[begin : begin + len(values)] = values
    assert np.array_equal(np.stack([packed & 15, packed >> 4], axis=1).reshape(-1), after)
