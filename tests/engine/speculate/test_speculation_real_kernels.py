"""On the real kernels: speculation takes fewer steps, and the tokens are those of plain decoding.

What holds bit by bit is in `test_exact_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dragoman.engine.rolling.config import RollingConfig, SpeculationConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest
from dragoman.engine.rolling.speculate.copied_text import OwnTextProposer
from dragoman.engine.rolling.speculate.draft_model import DraftModelProposer
from dragoman.engine.rolling.speculate.proposer import Proposer
from dragoman.engine.rolling.stats import RollingStats
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.types import EngineOutput, EngineRequest, SamplingParams
from tests.engine.integrity import check_core
from tests.support.random_checkpoint import RandomShape, write_checkpoint

SHAPE = RandomShape("speculation", seed=6, hidden_size=256, head_size=64, intermediate_size=512, head_std=0.3)
DEMO_MODEL = Path(__file__).parents[3] / "src" / "dragoman" / "demo_model"
NUM_BLOCKS = 128
CONFIG = SpeculationConfig(num_assistant_tokens=4, max_batch=16)


@dataclass
class Run:
    """The answers of requests that ran together, and how many steps they took."""

    token_ids: list[list[int]]
    logprobs: list[list[float]]
    stats: RollingStats = field(repr=False)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    directory = write_checkpoint(SHAPE, tmp_path_factory.mktemp("model"))
    return load_model(directory, ModelOptions(weight_type="f32"))


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model(DEMO_MODEL, ModelOptions(weight_type="f32"))


def requests() -> list[EngineRequest]:
    """Greedy and seeded requests over repetitive prompts, so that there is something to look up."""
    stream = np.random.RandomState(4)
    made = []
    for number in range(12):
        passage = tuple(int(token_id) for token_id in stream.randint(0, SHAPE.vocab_size, int(stream.randint(5, 40))))
        sampling = SamplingParams(temperature=0.0, logprobs=0)
        if number % 3 == 2:
            sampling = msgspec.structs.replace(sampling, temperature=0.7, top_p=0.9)
        if number % 4 == 3:
            sampling = msgspec.structs.replace(sampling, repetition_penalty=1.2)
        made.append(EngineRequest(f"r{number}", passage * 3, sampling, max_tokens=40, seed=number))
    return made


def run(loaded: LoadedModel, asked: list[EngineRequest], draft: LoadedModel | str | None) -> Run:
    runner = OpenVinoRunner(loaded, NUM_BLOCKS)
    proposers: list[Proposer] = []
    if isinstance(draft, str):
        proposers = [OwnTextProposer()]
    elif draft is not None:
        proposers = [DraftModelProposer(OpenVinoRunner(draft, NUM_BLOCKS), runner)]
    core = EngineCore(runner, Sampler(runner.vocab_size), RollingConfig(speculation=CONFIG), proposers)
    for key, request in enumerate(asked):
        core.inbox.put(AddRequest(key, request))
    result = Run([[] for _ in asked], [[] for _ in asked], core.stats)
    deliveries = core.step()
    while deliveries or core.has_work():
        for key, output in deliveries:
            assert isinstance(output, EngineOutput), output
            result.token_ids[key] += output.token_ids
            result.logprobs[key] += output.logprobs or []
        deliveries = core.step()
    check_core(core)
    return result


def check(plain: Run, quick: Run) -> None:
    """The same answers, with drafts that held."""
    assert quick.token_ids == plain.token_ids
    for own, other in zip(quick.logprobs, plain.logprobs, strict=True):
        np.testing.assert_allclose(own, other, atol=1e-3)
    assert quick.stats.num_accepted_tokens > 0
    num_different = len({tuple(token_ids) for token_ids in plain.token_ids})
    assert num_different > len(plain.token_ids) // 2, "the model says the same to everybody"


def test_with_a_draft_model_the_tokens_are_those_of_plain_decoding(loaded: LoadedModel) -> None:
    check(run(loaded, requests(), None), run(loaded, requests(), loaded))


def test_with_prompt_lookup_the_tokens_are_those_of_plain_decoding(demo: LoadedModel) -> None:
    check(run(demo, requests(), None), run(demo, requests(), "lookup"))


def test_a_model_that_drafts_for_itself_is_nearly_always_right(demo: LoadedModel) -> None:
    sampling = SamplingParams(temperature=0.0)
    asked = [
        EngineRequest(f"r{number}", tuple(range(20 + number, 60 + number)), sampling, max_tokens=48, seed=0)
        for number in range(4)
    ]
    quick = run(demo, asked, demo)
    assert quick.token_ids == run(demo, asked, None).token_ids
    assert quick.stats.num_accepted_tokens >= 0.98 * quick.stats.num_draft_tokens > 0
    assert quick.stats.num_steps <= 12  # 1 + 47 / 5, and some for the prompts
