"""On the real kernels: a sequence that outgrows the short regime goes on as one that was computed in the long one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dragoman.engine.rolling.config import RollingConfig, SpeculationConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest
from dragoman.engine.rolling.speculate.copied_text import OwnTextProposer
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.types import EngineOutput, EngineRequest, SamplingParams
from tests.engine.integrity import check_core
from tests.support.forward import forward_batch
from tests.support.random_checkpoint import RandomShape, write_checkpoint

BOUNDARY = 80
SHAPE = RandomShape(
    "regimes",
    seed=9,
    head_std=0.3,
    extra={
        "original_max_position_embeddings": BOUNDARY,
        "rope_scaling": {
            "rope_type": "longrope",
            "short_factor": [1.0 + 0.02 * i for i in range(16)],
            "long_factor": [1.5 + 0.3 * i for i in range(16)],
        },
    },
)
MAX_TOKENS = 30


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(write_checkpoint(SHAPE, tmp_path_factory.mktemp("model")), ModelOptions(weight_type="f32"))


def prompts() -> list[tuple[int, ...]]:
    """Below the boundary all the way, across it, on it, and beyond it from the start; with common beginnings."""
    common = np.random.RandomState(3).randint(0, SHAPE.vocab_size, 120).tolist()
    return [(*common[:length], 7, 8) for length in (20, 60, 66, 70, 77, 78, 79, 90, 110)]


def in_regime(batch: ForwardBatch, is_long: bool) -> ForwardBatch:
    return replace(batch, regimes=np.full(len(batch.input_ids), int(is_long), dtype=np.int64))


def computed_whole(loaded: LoadedModel, prompt: Sequence[int]) -> list[int]:
    """The greedy answer, each token from the whole text in the regime of its length."""
    runner, text = OpenVinoRunner(loaded, 8), list(prompt)
    for _ in range(MAX_TOKENS):
        batch = forward_batch([(text, 0, range(-(-len(text) // 32)))], [len(text) - 1])
        text.append(int(runner.forward(in_regime(batch, len(text) > BOUNDARY))[0].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("speculates", [False, True])
@pytest.mark.parametrize("max_batch_tokens", [512, 40])
def test_answers_are_those_of_texts_computed_whole_in_the_regime_of_their_length(
    loaded: LoadedModel, max_batch_tokens: int, speculates: bool
) -> None:
    runner = OpenVinoRunner(loaded, 80)
    proposers = [OwnTextProposer()] if speculates else []
    limits = SpeculationConfig(num_assistant_tokens=5, max_ngram_size=1, max_batch=16)
    config = RollingConfig(max_batch_tokens)
    core = EngineCore(runner, Sampler(SHAPE.vocab_size), replace(config, speculation=limits), proposers)
    sampling = SamplingParams(temperature=0.0)
    for key, prompt in enumerate(prompts()):
        core.inbox.put(AddRequest(key, EngineRequest(f"r{key}", prompt, sampling, MAX_TOKENS, seed=0)))
    answers: dict[int, list[int]] = {}
    deliveries: Any = core.step()
    while deliveries or core.has_work():
        for key, item in deliveries:
            assert isinstance(item, EngineOutput), item
            answers.setdefault(key, []).extend(item.token_ids)
        deliveries = core.step()
        check_core(core)
    for key, prompt in enumerate(prompts()):
        assert answers[key] == computed_whole(loaded, prompt), len(prompt)


def test_the_regime_decides_answers(loaded: LoadedModel) -> None:
    """Guards the test above: if both regimes gave the same logits, it could not fail."""
    runner = OpenVinoRunner(loaded, 8)
    batch = forward_batch([(prompts()[-1], 0, range(4))], [111])
    short, long = (runner.forward(in_regime(batch, is_long)).copy() for is_long in (False, True))
    assert np.abs(short - long).max() > 0.1
