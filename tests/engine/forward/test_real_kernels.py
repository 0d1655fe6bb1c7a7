"""On the real kernels, through the real scheduler: an answer is bit-identical alone, in company, and however it is cut.

With packed weights only some processors give that (tests/models/test_determinism.py): the others are asked in f32.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pytest

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.types import ContextShift, EngineOutput, EngineRequest, SamplingParams
from tests.engine.integrity import check_core
from tests.support.cpu import EXACT_F32, EXACT_PACKED
from tests.support.expert_models import write_experts
from tests.support.random_checkpoint import RandomShape, write_checkpoint
from tests.support.tiers import width

SHAPE = RandomShape("kernels", seed=6, hidden_size=256, head_size=64, intermediate_size=512, head_std=0.3)
OPTIONS = ModelOptions(weight_type="int8" if EXACT_PACKED else "f32")
NUM_REQUESTS = 64
STREAM = np.random.RandomState(4)
SHARED_PREFIX = tuple(int(token_id) for token_id in STREAM.randint(0, SHAPE.vocab_size, 70))


@dataclass
class Answer:
    """Everything a client could see of one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


def make_request(number: int) -> EngineRequest:
    """Short and long prompts, some with a shared prefix; greedy and seeded sampling in turn."""
    length = int(STREAM.randint(1, 120))
    own = tuple(int(token_id) for token_id in STREAM.randint(0, SHAPE.vocab_size, length))
    sampling = SamplingParams(temperature=0.0, logprobs=0)
    if number % 2:
        sampling = SamplingParams(temperature=0.8, top_p=0.9, top_k=50, repetition_penalty=1.1, logprobs=0)
    return EngineRequest(
        request_id=f"r{number}",
        prompt_ids=SHARED_PREFIX + own if number % 3 == 0 else own,
        sampling=sampling,
        max_tokens=12,
        seed=100 + number,
    )


REQUESTS = [make_request(number) for number in range(NUM_REQUESTS)]


@pytest.fixture(scope="module", params=["dense", "experts"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    directory = tmp_path_factory.mktemp("model")
    if request.param == "dense":
        return load_model(write_checkpoint(SHAPE, directory), OPTIONS)
    return load_model(write_experts("few", directory), OPTIONS)


def run(loaded: LoadedModel, requests: list[EngineRequest], config: RollingConfig) -> dict[str, Answer]:
    """Answers of requests that all arrive at once."""
    runner = OpenVinoRunner(loaded, num_blocks=NUM_REQUESTS * 8)
    core = EngineCore(runner, Sampler(SHAPE.vocab_size), config)
    for key, request in enumerate(requests):
        core.inbox.put(AddRequest(key, request))
    answers = {request.request_id: Answer() for request in requests}
    deliveries = core.step()
    while deliveries or core.has_work():
        for delivery in deliveries:
            assert isinstance(delivery.item, EngineOutput), delivery.item
            answers[delivery.item.request_id].token_ids += delivery.item.token_ids
            answers[delivery.item.request_id].logprobs += delivery.item.logprobs or []
        deliveries = core.step()
    check_core(core)
    assert core.stats.num_preemptions == 0
    return answers


@pytest.fixture(scope="module")
def alone(loaded: LoadedModel) -> dict[str, Answer]:
    config = RollingConfig(max_batch_tokens=4096, max_num_seqs=1, prefix_cache="off")
    answers: dict[str, Answer] = {}
    for request in width(REQUESTS, REQUESTS[::5]):  # of every kind
        answers.update(run(loaded, [request], config))
    return answers


CHUNKINGS = list(product([4096, 200, 67], ["off", "prompt"]))


@pytest.mark.varies("which kernels keep every bit depends on the processor")
@pytest.mark.parametrize(("max_batch_tokens", "prefix_cache"), width(CHUNKINGS, [(4096, "off"), (67, "prompt")]))
def test_among_63_others_and_with_any_chunking_every_bit_is_the_same(
    loaded: LoadedModel, alone: dict[str, Answer], max_batch_tokens: int, prefix_cache: str
) -> None:
    config = RollingConfig(max_batch_tokens, max_num_seqs=NUM_REQUESTS, prefix_cache=prefix_cache)  # type: ignore[arg-type]
    together = run(loaded, REQUESTS, config)
    for request_id, answer in alone.items():
        assert together[request_id].token_ids == answer.token_ids, request_id
        expected = answer.logprobs if EXACT_F32 else pytest.approx(answer.logprobs, abs=1e-4)
        assert together[request_id].logprobs == expected, request_id


def test_a_shifted_context_is_a_prompt_whose_front_is_computed_already(loaded: LoadedModel) -> None:
    prompt = REQUESTS[0].prompt_ids[:79]
    shifted = EngineRequest("s", prompt, SamplingParams(temperature=0.0), 61, 1, shift=ContextShift(128, num_kept=70))
    token_ids = run(loaded, [shifted, *REQUESTS[:5]], RollingConfig(prefix_cache="off"))["s"].token_ids
    num_before = 128 - len(prompt)
    read = [*prompt, *token_ids[:num_before]]
    kept = (*read[:70], *read[98:])  # of the 57 others that were read, 28 are gone
    fresh = EngineRequest("f", kept, shifted.sampling, 12, 1)
    assert run(loaded, [fresh], RollingConfig())["f"].token_ids == token_ids[num_before:]


def test_the_model_is_decided_by_its_prompt(alone: dict[str, Answer]) -> None:
    """Guards the test above: if every answer were the same, it could not fail."""
    assert len({tuple(answer.token_ids) for answer in alone.values()}) > len(alone) // 2
