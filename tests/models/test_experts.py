"""Experts apart compute what plain numpy does, in every format of weights and for uneven choices.

Those of our kernels have tests of their own (tests/kernels/test_expert_layers.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from dragoman.kernels.graph import runtime
from dragoman.models.blocks.mlp import ExpertWeights, Routing, evaluate_experts
from dragoman.models.facts import ExpertFacts
from dragoman.models.storage.constants import StoredType, WeightFormat, WeightStorage
from dragoman.models.storage.row_parts import RowParts
from dragoman.models.weights import Weights
from tests.support.cpu import EXACT_F32

Array = np.ndarray[Any, Any]

HIDDEN, FACTS = 256, ExpertFacts(num_experts=8, num_active=2, inner_size=128, activation="silu")
BOUNDS: dict[StoredType, float] = {"f32": 1e-5, "bf16": 1e-2, "int8": 2e-2, "int8_symmetric": 2e-2, "int4": 0.2}

MATRICES: dict[str, Array] = {
    f"{index}.{name}.weight": (
        np.random.RandomState(3 * index + number).standard_normal(shape) / shape[1] ** 0.5
    ).astype(np.float32)
    for index in range(FACTS.num_experts)
    for number, (name, shape) in enumerate({"gate": (128, HIDDEN), "up": (128, HIDDEN), "down": (HIDDEN, 128)}.items())
}

# of each token: its experts; some get no token, some a single one, some all
CHOICES = {
    "a single token": [[3, 6]],
    "all tokens alike": [[0, 7]] * 5,
    "uneven": [[0, 1], [0, 2], [1, 0], [0, 7], [2, 0], [0, 4]],
}


class Stored:
    """A checkpoint in memory."""

    def __contains__(self, name: str) -> bool:
        return name in MATRICES

    def __iter__(self) -> Iterator[str]:
        return iter(MATRICES)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Array:
        assert MATRICES[name].shape == shape
        matrix: Array = MATRICES[name]
        return matrix


def compiled_experts(stored: WeightFormat) -> Any:
    """x [T, 1, hidden], chosen and shares [T, active] -> [T, 1, hidden]."""
    x = ops.parameter(ov.PartialShape([-1, 1, HIDDEN]), ov.Type.f32)
    chosen = ops.parameter(ov.PartialShape([-1, FACTS.num_active]), ov.Type.i64)
    shares = ops.parameter(ov.PartialShape([-1, FACTS.num_active]), ov.Type.f32)
    with RowParts(1) as parts:
        weights = Weights(Stored(), WeightStorage(stored, parts))
        experts = [
            ExpertWeights(*(weights.at(f"{index}.{name}") for name in ("gate", "up", "down")))
            for index in range(FACTS.num_experts)
        ]
        result = evaluate_experts(x.output(0), Routing(chosen.output(0), shares.output(0)), experts, FACTS)
        parts.finish()
    properties = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    core = runtime(has_operations=stored.is_ours)
    return core.compile_model(ov.Model([result], [x, chosen, shares], "experts"), "CPU", properties)


def expected(x: Array, chosen: Array, shares: Array) -> Array:
    total = np.zeros((len(x), HIDDEN))
    for token, experts in enumerate(chosen):
        for index, share in zip(experts, shares[token], strict=True):
            gate, up, down = (MATRICES[f"{index}.{name}.weight"].astype(np.float64) for name in ("gate", "up", "down"))
            gated = gate @ x[token, 0]
            total[token] += share * (down @ (gated / (1 + np.exp(-gated)) * (up @ x[token, 0])))
    return total


def check_against_numpy(compiled: Any, bound: float) -> None:
    stream = np.random.RandomState(7)
    for name, choice in CHOICES.items():
        chosen = np.array(choice, dtype=np.int64)
        x = stream.standard_normal((len(chosen), 1, HIDDEN)).astype(np.float32)
        shares = stream.uniform(0.1, 1.0, chosen.shape).astype(np.float32)
        wanted = expected(x, chosen, shares)
        found = compiled([x, chosen, shares])[0].reshape(len(x), HIDDEN)
        assert np.linalg.norm(found - wanted) <= bound * np.linalg.norm(wanted), name


@pytest.mark.parametrize("stored_type", BOUNDS)
def test_experts_apart_compute_what_numpy_does(stored_type: StoredType) -> None:
    check_against_numpy(compiled_experts(WeightFormat(stored_type)), BOUNDS[stored_type])


def test_a_token_is_computed_alone_as_in_company() -> None:
    compiled = compiled_experts(WeightFormat("f32"))
    x = np.random.RandomState(8).standard_normal((64, 1, HIDDEN)).astype(np.float32)
    chosen = np.tile(np.array([[5, 2]], dtype=np.int64), (64, 1))
    shares = np.full(chosen.shape, 0.5, dtype=np.float32)
    together = compiled([x, chosen, shares])[0].copy()
    for index in (0, 17, 63):
        alone = compiled([x[index : index + 1], chosen[:1], shares[:1]])[0]
        assert np.allclose(alone[0], together[index], rtol=0, atol=0 if EXACT_F32 else 1e-5)
