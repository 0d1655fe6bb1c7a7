"""On the real kernels a sequence's logits do not depend on its batch-mates or on how its prompt was chunked.

Bit for bit on x86 without matrix tiles; but for rounding on processors where nobody has measured it. Some matrices are wider
than what kernels add up in one order where integers are unpacked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.models import LoadedModel, ModelOptions, load_model
from tests.support.cpu import EXACT_F32, EXACT_PACKED
from tests.support.expert_models import write_experts
from tests.support.exported_model import write_exported
from tests.support.family_checkpoint import write_family_checkpoint
from tests.support.forward import forward_batch
from tests.support.hybrid_checkpoint import write_hybrid, write_stateful
from tests.support.random_checkpoint import RandomShape, write_checkpoint
from tests.support.tiers import width

SHAPE = RandomShape("determinism", seed=5, hidden_size=256, num_heads=4, head_size=64, intermediate_size=4864)
BLOCKS_EACH = 4
VOCAB_SIZE = 320  # of the smallest model
PROMPT = [int(token_id) for token_id in np.random.RandomState(1).randint(0, 300, 90)]
DECODED = [int(token_id) for token_id in np.random.RandomState(2).randint(0, VOCAB_SIZE, 6)]


KINDS = [
    *("dense-int8-auto", "dense-int8-u8", "dense-int4-u8", "dense-bf16-auto", "dense-f32-f32", "dense-f32-u8"),
    *("hybrid-bf16-auto", "hybrid-int8-u8", "hybrid-f32-f32", "states-int8-auto", "states-f32-f32"),
    *("qwen3:f16-int8-auto", "gemma3_text:-f32-f32"),
    *("few-int8-auto", "few-f32-f32", "many-int8-auto", "many-f32-f32", "shared-int8-auto", "shared-int8-u8"),
]
FEW_KINDS = [
    *("dense-int8-bf16", "dense-int4-u8", "dense-f32-f32", "hybrid-int8-u8", "hybrid-f32-f32", "states-f32-f32"),
    *("few-int8-bf16", "many-int8-bf16", "many-f32-f32", "shared-int8-bf16"),
]


def write(kind: str, directory: Path) -> Path:
    if kind == "dense":
        return write_checkpoint(SHAPE, directory)
    if kind == "hybrid":
        return write_hybrid(directory)
    if kind == "states":
        return write_stateful(directory)
    if ":" in kind:
        return write_exported(kind.replace(":", "-").rstrip("-"), directory)
    if kind == "shared":  # layers that write the keys and values of others once more
        return write_family_checkpoint("gemma4", directory)
    return write_experts("many" if kind == "many" else "few", directory)


@pytest.fixture(scope="module", params=width(KINDS, FEW_KINDS))
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    kind, weight_type, kv_type = request.param.split("-")
    directory = write(kind, tmp_path_factory.mktemp("model"))
    try:
        return load_model(directory, ModelOptions(weight_type=weight_type, kv_type=kv_type, num_threads=2))
    except ValueError:
        pytest.skip("this CPU has no bf16")


def assert_equal(loaded: LoadedModel, found: Any, expected: Any, *, has_lone_tokens: bool = False) -> None:
    """Bit for bit, or where the plugin does not allow that, up to rounding: of f32, and of a u8 key that it tips over.

    `has_lone_tokens`: a piece of the prompt is one token, which OpenVINO's attention computes as it decodes.
    """
    is_exact = EXACT_F32 if loaded.options.weight_type == "f32" else EXACT_PACKED
    if is_exact and (loaded.profile.attends or not has_lone_tokens):
        assert np.array_equal(found, expected)
    else:
        unit = 2e-2 if loaded.profile.inference_type == "bf16" else 1e-3
        assert np.abs(found - expected).max() <= unit * np.abs(expected).max()


def blocks_of(sequence: int) -> range:
    return range(sequence * BLOCKS_EACH, (sequence + 1) * BLOCKS_EACH)


def run(loaded: LoadedModel, *, num_others: int, chunks: list[int]) -> Any:
    """Logits after the prompt and after each decoded token, with `num_others` other sequences in every step."""
    runner = OpenVinoRunner(loaded, num_blocks=BLOCKS_EACH * (num_others + 1))
    others = [[(7 * i + 3) % loaded.facts.vocab_size, 11] for i in range(num_others)]
    rows, done = [], 0
    for size in chunks:
        mates = [(tokens, 0, blocks_of(i + 1)) for i, tokens in enumerate(others)]
        batch = forward_batch([(PROMPT[done : done + size], done, blocks_of(0)), *mates], logit_rows=[size - 1])
        logits, done = runner.forward(batch), done + size
    assert done == len(PROMPT)
    rows.append(logits[0].copy())
    for step, token_id in enumerate(DECODED):
        mates = [([tokens[0]], 2 + step, blocks_of(i + 1)) for i, tokens in enumerate(others)]
        batch = forward_batch(
            [([token_id], len(PROMPT) + step, blocks_of(0)), *mates], logit_rows=range(num_others + 1)
        )
        rows.append(runner.forward(batch)[0].copy())
    return np.array(rows)


@pytest.mark.varies("which kernels keep every bit depends on the processor")
@pytest.mark.parametrize("num_others", width([1, 2, 7, 63], [63]))
def test_batch_mates_change_nothing(loaded: LoadedModel, num_others: int) -> None:
    alone = run(loaded, num_others=0, chunks=[90])
    assert_equal(loaded, run(loaded, num_others=num_others, chunks=[90]), alone)


CHUNKS = [[1] * 90, [31, 1, 1, 40, 17], [32, 32, 26], [50, 40], [5] * 18, [2, 88], [87, 3]]


@pytest.mark.varies("which kernels keep every bit depends on the processor")
@pytest.mark.parametrize("chunks", width(CHUNKS, [[31, 1, 1, 40, 17], [2, 88]]), ids=str)
def test_chunking_the_prompt_changes_nothing(loaded: LoadedModel, chunks: list[int]) -> None:
    whole = run(loaded, num_others=0, chunks=[90])
    assert_equal(loaded, run(loaded, num_others=0, chunks=chunks), whole, has_lone_tokens=1 in chunks)
