"""Behind long contexts a sequence's logits are the same bits alone and in company, however many rows the runner adds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.models import LoadedModel, ModelOptions, load_model
from tests.support.cpu import EXACT_F32, EXACT_PACKED
from tests.support.forward import forward_batch
from tests.support.random_checkpoint import RandomShape, write_checkpoint

CONTEXT = 8300  # tokens
BLOCKS_EACH = CONTEXT // 32 + 1
NUM_SEQUENCES = 4
SHAPE = RandomShape("long", seed=8, hidden_size=256, num_kv_heads=2, head_size=64, max_position=10_000)


@pytest.fixture(scope="module", params=["int8-auto", "int8-u8", "f32-f32"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    weight_type, kv_type = request.param.split("-")
    if not (EXACT_F32 if weight_type == "f32" else EXACT_PACKED):
        pytest.skip("this processor promises no bits")
    directory = write_checkpoint(SHAPE, tmp_path_factory.mktemp("model"))
    return load_model(directory, ModelOptions(weight_type, kv_type, num_threads=SHAPE.num_kv_heads))


def test_a_lone_sequence_and_a_pair_have_the_bits_that_they_have_among_others(loaded: LoadedModel) -> None:
    runner = OpenVinoRunner(loaded, NUM_SEQUENCES * BLOCKS_EACH)
    tokens = [int(token_id) for token_id in np.random.RandomState(3).randint(0, SHAPE.vocab_size, 96)]
    runner.forward(forward_batch([(tokens, 0, range(3))], [95]))
    runner.copy_blocks([(block % 3, block) for block in range(3, NUM_SEQUENCES * BLOCKS_EACH)])  # the context of all

    def decoded(num_sequences: int) -> list[Any]:
        rows = [
            ([number + 5], CONTEXT - 1 - number, range(number * BLOCKS_EACH, (number + 1) * BLOCKS_EACH))
            for number in range(num_sequences)
        ]
        return list(runner.forward(forward_batch(rows, range(num_sequences))).copy())

    together = decoded(NUM_SEQUENCES)
    assert not np.array_equal(together[0], together[1])
    for num_sequences in (1, 2, 3):
        for found, expected in zip(decoded(num_sequences), together, strict=False):
            assert np.array_equal(found, expected)
    runner.close()
