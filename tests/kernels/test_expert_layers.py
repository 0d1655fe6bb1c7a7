"""Layers of experts over kernels of our own: what they compute, how their matrices are stored, and who gets them apart."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.kernels.native import Library
from dragoman.models import ModelOptions, load_model, loader
from dragoman.models.facts import ExpertFacts
from dragoman.models.profile import Processor
from dragoman.models.sources.base import Array, PackedMatrix, StoredTensor
from dragoman.models.sources.mxfp4 import Mxfp4Matrix
from dragoman.models.storage.constants import StoredType, WeightFormat, WeightStorage
from dragoman.models.storage.packing import common_order, packed_stack
from dragoman.models.storage.row_parts import RowParts
from tests.models.test_experts import check_against_numpy, compiled_experts
from tests.support.family_checkpoint import write_family_checkpoint
from tests.support.family_logits import logits_of
from tests.support.tiers import width

pytestmark = [pytest.mark.usefixtures("kernels"), pytest.mark.varies("the instruction set is the processor's")]

OURS: dict[StoredType, float] = {"int8": 2e-2, "int4": 0.2, "bf16": 1e-2, "f16": 1e-2}
SHAPE = (48, 128)
COUNT = 3


def num_operations(compiled: Any) -> int:
    """How many operations of our kernels a graph has."""
    nodes = compiled.get_runtime_model().get_ops()
    return sum(node.get_rt_info()["layerType"].astype(str) == "Reference" for node in nodes)


@pytest.mark.parametrize("stored_type", OURS)
def test_one_operation_computes_what_numpy_does(stored_type: StoredType) -> None:
    compiled = compiled_experts(WeightFormat(stored_type, is_ours=True))
    assert num_operations(compiled) == 1
    check_against_numpy(compiled, OURS[stored_type])


def packed_matrix(
    seed: int, *, order: Array | None = None, group_size: int = 64, has_zeros: bool = False
) -> PackedMatrix:
    """Random codes of four bits in groups."""
    stream = np.random.default_rng(seed)
    num_groups = SHAPE[1] // group_size
    scales = stream.uniform(0.01, 0.1, (SHAPE[0], num_groups)).astype(np.float16)
    if has_zeros:
        values, zeros = (stream.integers(0, 16, (SHAPE[0], size), dtype=np.uint8) for size in (SHAPE[1], num_groups))
        return PackedMatrix(values, scales, zeros, 4, order)
    return PackedMatrix(stream.integers(-8, 8, SHAPE, dtype=np.int8), scales, None, 4, order)


def mxfp4_matrix(seed: int) -> PackedMatrix:
    """Random codes and scales."""
    stream = np.random.default_rng(seed)
    blocks = stream.integers(0, 256, (SHAPE[0], SHAPE[1] // 32, 16), dtype=np.uint8)
    return Mxfp4Matrix(blocks, stream.integers(110, 130, blocks.shape[:2], dtype=np.uint8)).packed()


def test_experts_keep_how_they_are_stored_if_that_is_alike_and_are_stored_anew_if_not(kernels: Library) -> None:
    first, second = (np.random.default_rng(seed).permutation(SHAPE[1]) for seed in (10, 11))
    numbers = np.random.default_rng(12).normal(size=SHAPE).astype(np.float32)
    plain = packed_matrix(0)
    cases: list[tuple[str, list[StoredTensor], str, bool]] = [
        ("alike", [packed_matrix(seed) for seed in range(COUNT)], "i4", False),
        ("alike with zero points", [packed_matrix(seed, has_zeros=True) for seed in range(COUNT)], "i4z", False),
        ("MXFP4", [mxfp4_matrix(seed) for seed in range(COUNT)], "mxfp4", False),
        ("one order", [packed_matrix(seed, order=first.copy()) for seed in range(COUNT)], "i4", True),
        (
            "unequal orders",
            [packed_matrix(seed, order=order) for seed, order in enumerate((first, second, None))],
            "i8z",
            False,
        ),
        ("unequal groups", [plain, packed_matrix(1, group_size=32), plain], "i8z", False),
        (
            "one order, unequal groups",
            [packed_matrix(size, order=first, group_size=size) for size in (64, 32, 64)],
            "i8z",
            True,
        ),
        ("some zero points", [plain, packed_matrix(1, has_zeros=True), plain], "i8z", False),
        ("some numbers", [plain, numbers, plain], "i8z", False),
        ("numbers", [numbers, -numbers, 2 * numbers], "i8z", False),
    ]
    for name, matrices, layout, has_order in cases:
        order = common_order(matrices)
        assert (order is not None) == has_order, name
        with RowParts(1) as parts:
            node = packed_stack(matrices, WeightStorage(WeightFormat("int8", is_ours=True), parts), order=order)
            parts.finish()
        assert (node.layout.format, node.layout.outputs, node.layout.columns) == (layout, *SHAPE), name
        data = node.memory.data
        for one, matrix in zip(np.split(data, COUNT), matrices, strict=True):
            meant = np.asarray(matrix, dtype=np.float32)
            meant = meant if order is None else meant[:, order]
            found = kernels.unpack_rows(node.layout, one, np.arange(SHAPE[0]))
            bound = 0.01 if layout == "i8z" else 1e-6
            assert np.abs(found - meant).max() <= bound * np.abs(meant).max(), name


class Silent:
    """Watches a graph, and says nothing; whoever is watched has experts apart."""

    def product(self, tensors: Any, x: Any, result: Any, *, bias: bool) -> None: ...

    def norm(self, tensors: Any, result: Any, *, offset: float, bias: bool) -> None: ...


FAMILIES = ("mixtral", "granitemoeshared", "nemotron_h_moe", "qwen2_moe", "deepseek_v2", "gpt_oss", "gpt_oss_mxfp4")


@pytest.mark.parametrize("name", width(FAMILIES, ["nemotron_h_moe", "qwen2_moe", "gpt_oss_mxfp4"]))
def test_families_compute_with_the_operation_what_they_do_with_experts_apart(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Processor, "has_bf16", False)  # in which routers would choose otherwise now and then
    options, token_ids = ModelOptions("int8", kernels="own"), [(37 * index) % 290 for index in range(50)]
    directory = write_family_checkpoint(name, tmp_path)
    whole = load_model(directory, options)
    with monkeypatch.context() as patched:
        patched.setattr(loader, "WeightStorage", partial(WeightStorage, watcher=Silent()))
        apart = load_model(directory, options)
    num_layers = sum(isinstance(layer.mlp, ExpertFacts) for layer in whole.facts.layers)
    assert num_operations(whole.compiled) <= num_operations(apart.compiled) - num_layers
    found, expected = logits_of(whole, token_ids), logits_of(apart, token_ids)
    # activations round otherwise in the last bit, and so may 8-bit codes that fall between two
    assert np.abs(found - expected).max() <= 0.02 * np.abs(expected).max()
