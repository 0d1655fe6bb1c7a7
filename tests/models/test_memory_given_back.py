"""A closed engine gives its memory back, weights, key/value cache and all, however many models came and went before."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.models.storage.constants import WeightType
from tests.support.random_checkpoint import RandomShape, write_checkpoint
from tests.support.step_memory import CAN_TELL
from tests.support.tiers import everything, width
from tests.support.unloading import Model, measure

pytestmark = pytest.mark.skipif(not CAN_TELL, reason="memory is read as Linux with glibc tells it")

# 16 MB of weights in int8, 64 in f32; the cache takes 47 MiB in bf16, 94 in f32.
SHAPE = RandomShape(
    "unloaded",
    seed=4,
    hidden_size=512,
    num_heads=8,
    head_size=64,
    intermediate_size=1408,
    vocab_size=10_000,
    bf16=True,
)

NUM_ROUNDS = 6 if everything() else 3
# What the runtime keeps of the first model is its libraries' own, its threads' scratch buffers, and kernels, whose number is
# bounded (`runtime_memory`). Which kernels these are varies by some MiB with the next models; of hundreds it keeps no more.
FIRST_MIB = 40
NEXT_MIB = 20


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(SHAPE, tmp_path_factory.mktemp("model"))


WAYS: list[tuple[WeightType, str, bool]] = [
    *(("int8", "alone", False), ("f32", "alone", False), ("int8", "draft", False)),
    *(("int8", "alone", True), ("f32", "alone", True), ("int8", "draft", True)),
]


@pytest.mark.varies("memory is read from glibc")
@pytest.mark.parametrize(("weight_type", "role", "is_kept"), width(WAYS, [("int8", "draft", True)]))
def test_a_closed_engine_gives_its_memory_back(
    weight_type: WeightType, role: str, is_kept: bool, directory: Path, tmp_path: Path
) -> None:
    held = measure([Model(directory, weight_type, role)], NUM_ROUNDS, tmp_path if is_kept else None)
    assert min(held.loaded) > held.start + 50  # else there was nothing to give back
    assert held.closed[0] < held.start + FIRST_MIB
    assert max(held.closed) < held.closed[0] + NEXT_MIB
    assert held.num_mapped == [0] * NUM_ROUNDS
