"""A row of a product has the same bits alone and among any number of rows, in every form that weights are stored in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from dragoman.kernels.graph import runtime
from dragoman.models import ModelOptions
from dragoman.models.blocks.linear import product
from dragoman.models.profile import kernel_profile
from dragoman.models.sources.base import PackedMatrix, StoredTensor
from dragoman.models.storage.constants import WeightStorage, WeightType
from dragoman.models.storage.row_parts import RowParts
from tests.support.cpu import EXACT_PACKED

NUM_ROWS = (1, 2, 4, 5, 7, 33, 80, 81)


def matrices() -> Iterator[tuple[str, WeightType, StoredTensor]]:
    """Names, types that are asked for, and matrices, wide ones as some kernels cut these."""
    random = np.random.RandomState(3)
    for rows, columns in ((32, 4864), (16, 2880)):
        numbers = random.standard_normal((rows, columns)).astype(np.float32) / 64
        yield f"int8, {columns}", "int8", numbers
        yield f"int4, {columns}", "int4", numbers
        yield f"f32, {columns}", "f32", numbers
        yield f"bf16, {columns}", "bf16", numbers
        for dtype, bits, group in ((np.uint8, 4, 32), (np.int8, 8, 32), (np.uint8, 8, columns), (np.int8, 4, columns)):
            least = -(1 << (bits - 1)) if dtype == np.int8 else 0
            values = random.randint(least, least + (1 << bits), (rows, columns)).astype(dtype)
            scales = (random.rand(rows, columns // group) / 512).astype(np.float16)
            zeros = random.randint(0, 1 << bits, scales.shape).astype(dtype) if dtype == np.uint8 else None
            yield f"packed in {bits} bits, {group} of {columns}", "int8", PackedMatrix(values, scales, zeros, bits)


@pytest.mark.varies("which kernels keep every bit depends on the processor")
@pytest.mark.skipif(not EXACT_PACKED, reason="nobody has measured it on this processor")
def test_a_row_has_the_same_bits_among_any_number_of_rows() -> None:
    differing = {}
    for name, weight_type, matrix in matrices():
        group = matrix.group_size if isinstance(matrix, PackedMatrix) else None
        profile = kernel_profile(ModelOptions(weight_type, num_threads=2), smallest_group=group)
        x = ops.parameter([-1, matrix.shape[1]], np.float32)
        with RowParts() as parts:
            node = product(x.output(0), matrix, WeightStorage(profile.weights, parts))
            parts.finish()
        compiled = runtime(has_operations=profile.weights.is_ours).compile_model(
            ov.Model([node], [x]), "CPU", profile.properties
        )
        rows = np.random.RandomState(5).standard_normal((NUM_ROWS[-1], matrix.shape[1])).astype(np.float32)
        products = {count: np.array(compiled([rows[:count]])[0][0]) for count in NUM_ROWS}
        others = [count for count, found in products.items() if not np.array_equal(found, products[2])]
        if others:
            differing[name] = others
    assert differing == {}
