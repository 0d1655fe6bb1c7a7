"""On the real kernels, through the real scheduler: models whose layers do not all attend say what their weights say.

Each answer is checked against one forward pass over all its tokens: whatever the engine did with blocks meanwhile, the
log-probabilities that it delivered must be those. A convolution that looked back at the wrong rows would not be close, nor a
layer that went on from the wrong state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dragoman.engine.factory import EngineSetup
from dragoman.engine.rolling.config import RollingConfig, SpeculationConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.factory import factory
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest
from dragoman.engine.rolling.speculate.copied_text import OwnTextProposer
from dragoman.engine.rolling.speculate.draft_model import DraftModelProposer
from dragoman.engine.rolling.speculate.proposer import Proposer
from dragoman.engine.rolling.stats import RollingStats
from dragoman.errors import EngineFailed
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.models.profile import computes_alike
from dragoman.types import ContextShift, EngineOutput, EngineRequest, SamplingParams
from tests.engine.integrity import check_core
from tests.engine.test_core import BrokenMasker
from tests.support.forward import forward_batch
from tests.support.hybrid_checkpoint import VOCAB_SIZE, write_hybrid, write_scanning, write_stateful
from tests.support.live_parts import LIVE_TOOLS, with_masker
from tests.support.tiers import width

STREAM = np.random.RandomState(4)
SHARED_PREFIX = tuple(int(token_id) for token_id in STREAM.randint(0, VOCAB_SIZE, 70))
CONFIG = RollingConfig(repeats_steps=False)
SPECULATION = SpeculationConfig(num_assistant_tokens=4, max_batch=16)
MANY_BLOCKS = 512


@dataclass
class Answers:
    """Of each request, by its name: the tokens and log-probabilities of each sequence."""

    token_ids: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    logprobs: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    errors: list[Any] = field(default_factory=list)
    stats: RollingStats = field(default_factory=RollingStats)

    def add(self, output: EngineOutput) -> None:
        """Append what a step added to a sequence."""
        self.token_ids.setdefault(output.request_id, {}).setdefault(output.index, []).extend(output.token_ids)
        logprobs = self.logprobs.setdefault(output.request_id, {}).setdefault(output.index, [])
        logprobs.extend(output.logprobs or [])


@pytest.fixture(
    scope="module",
    params=[write_hybrid, write_stateful, write_scanning],
    ids=["convolutions", "states", "states alone"],
)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    written: Path = request.param(tmp_path_factory.mktemp("hybrid"))
    return written


@pytest.fixture(scope="module")
def loaded(directory: Path) -> LoadedModel:
    return load_model(directory, ModelOptions(weight_type="f32"))


@pytest.fixture(autouse=True)
def same_prompts() -> None:
    """Whatever tests ran before."""
    STREAM.seed(5)


def prompt(length: int) -> tuple[int, ...]:
    return tuple(int(token_id) for token_id in STREAM.randint(0, VOCAB_SIZE, length))


def make_requests(count: int, **sampling: Any) -> list[EngineRequest]:
    """Short and long prompts, some with a shared prefix; greedy and seeded sampling in turn."""
    made = []
    for number in range(count):
        tokens = prompt(int(STREAM.randint(1, 120)))
        temperature = 0.8 if number % 2 else 0.0
        params = SamplingParams(**{"temperature": temperature, "logprobs": 0, "ignore_eos": True, **sampling})
        token_ids = SHARED_PREFIX + tokens if number % 3 == 0 else tokens
        made.append(EngineRequest(f"r{number}", token_ids, params, max_tokens=40, seed=100 + number))
    return made


def run(
    loaded: LoadedModel,
    requests: Sequence[EngineRequest],
    config: RollingConfig = CONFIG,
    num_blocks: int = MANY_BLOCKS,
    drafts: str = "",
) -> Answers:
    """Answers of requests that all arrive at once."""
    runner = OpenVinoRunner(loaded, num_blocks)
    proposers: list[Proposer] = []
    if drafts == "prompt lookup":
        proposers = [OwnTextProposer()]
    elif drafts == "draft model":
        proposers = [DraftModelProposer(OpenVinoRunner(loaded, num_blocks), runner)]
    config = replace(
        config, has_states=bool(loaded.facts.state_layers) and not computes_alike(loaded.facts, loaded.profile)
    )
    core = EngineCore(runner, Sampler(VOCAB_SIZE), replace(config, speculation=SPECULATION), proposers)
    for key, request in enumerate(requests):
        core.inbox.put(AddRequest(key, request))
    answers = Answers(stats=core.stats)
    deliveries = core.step()
    while deliveries or core.has_work():
        for delivery in deliveries:
            assert isinstance(delivery.item, EngineOutput), delivery.item
            answers.add(delivery.item)
        deliveries = core.step()
        check_core(core)
    return answers


def check(loaded: LoadedModel, requests: Sequence[EngineRequest], answers: Answers) -> None:
    """Every sequence's log-probabilities are those of one forward pass over its prompt and its tokens."""
    runner = OpenVinoRunner(loaded, num_blocks=8)
    for request in requests:
        sequences = answers.token_ids[request.request_id]
        for index, token_ids in sequences.items():
            tokens = [*request.prompt_ids, *token_ids]
            begin, end = len(request.prompt_ids) - 1, len(tokens) - 1
            logits = runner.forward(forward_batch([(tokens[:end], 0, range(-(-end // 32)))], range(begin, end)))
            logits = logits - logits.max(axis=1, keepdims=True)
            expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            found = answers.logprobs[request.request_id][index]
            np.testing.assert_allclose(found, expected[np.arange(len(token_ids)), token_ids], atol=1e-3)
    different = {tuple(answers.token_ids[request.request_id][0]) for request in requests}
    assert len(different) > len(requests) // 2, "the model says the same to everybody"


CHUNKINGS = list(product([4096, 67], ["off", "prompt", "all"]))


@pytest.mark.varies("sums are of other kernels on other processors")
@pytest.mark.parametrize(("max_batch_tokens", "prefix_cache"), width(CHUNKINGS, [(67, "all")]))
def test_in_company_and_with_any_chunking(loaded: LoadedModel, max_batch_tokens: int, prefix_cache: Any) -> None:
    requests = make_requests(16)
    answers = run(loaded, requests, replace(CONFIG, max_batch_tokens=max_batch_tokens, prefix_cache=prefix_cache))
    check(loaded, requests, answers)
    alone = [run(loaded, [request], replace(CONFIG, max_num_seqs=1, prefix_cache="off")) for request in requests[:4]]
    assert all(answers.token_ids[name] == token_ids for one in alone for name, token_ids in one.token_ids.items())


def test_a_prompt_goes_on_behind_blocks_that_another_request_computed(loaded: LoadedModel) -> None:
    requests = [
        EngineRequest(f"r{number}", SHARED_PREFIX + prompt(number + 2), greedy(), max_tokens=20, seed=number)
        for number in range(6)
    ]
    answers = run(loaded, requests, replace(CONFIG, max_num_seqs=1))
    assert answers.stats.num_prefix_hits == 5 * 64
    check(loaded, requests, answers)


def test_after_preemptions(loaded: LoadedModel) -> None:
    requests = make_requests(12)
    answers = run(loaded, requests, replace(CONFIG, assumed_output_tokens=1), num_blocks=14)
    # whose layers all have states needs no more room for a longer answer
    assert answers.stats.num_preemptions > 0 or not loaded.facts.attention_layers
    check(loaded, requests, answers)
    undisturbed = run(loaded, requests)
    assert undisturbed.stats.num_preemptions == 0
    assert (answers.token_ids, answers.logprobs) == (undisturbed.token_ids, undisturbed.logprobs)  # to the last bit


def test_a_shifted_context_is_a_prompt(loaded: LoadedModel) -> None:
    shifted = msgspec.structs.replace(make_requests(1)[0], prompt_ids=prompt(100), shift=ContextShift(128, num_kept=40))
    answers = run(loaded, [shifted, *make_requests(3)[1:]])
    token_ids, logprobs = answers.token_ids["r0"][0], answers.logprobs["r0"][0]
    read = [*shifted.prompt_ids, *token_ids[:28]]
    kept = (*read[:40], *read[83:])  # of the 87 others that were read, 43 are gone
    fresh = run(loaded, [msgspec.structs.replace(shifted, prompt_ids=kept, max_tokens=12, shift=None)])
    assert fresh.token_ids["r0"][0] == token_ids[28:]
    assert fresh.logprobs["r0"][0] == pytest.approx(logprobs[28:], abs=1e-4)


def test_sequences_that_fork(loaded: LoadedModel) -> None:
    requests = make_requests(5, temperature=1.0, n=4)
    answers = run(loaded, requests)
    check(loaded, requests, answers)
    assert all(len({tuple(ids) for ids in answers.token_ids[request.request_id].values()}) == 4 for request in requests)


@pytest.mark.parametrize("num_blocks", width([MANY_BLOCKS, 28], [28]))
def test_beams(loaded: LoadedModel, num_blocks: int) -> None:
    requests = make_requests(4, temperature=1.0, num_beams=4, n=2)
    check(loaded, requests, run(loaded, requests, replace(CONFIG, assumed_output_tokens=1), num_blocks))


@pytest.mark.parametrize("drafts", width(["prompt lookup", "draft model"], ["draft model"]))
def test_drafts_that_are_accepted_and_refused(drafts: str, tmp_path: Path) -> None:
    directory = write_hybrid(tmp_path)
    loaded = load_model(directory, ModelOptions(weight_type="f32"))
    requests = repetitive_requests()
    answers = run(load_model(directory, ModelOptions(weight_type="f32", takes_back=True)), requests, drafts=drafts)
    check(loaded, requests, answers)
    assert answers.stats.num_draft_tokens > answers.stats.num_accepted_tokens > 0
    plain = run(loaded, requests)
    assert (answers.token_ids, answers.logprobs) == (plain.token_ids, plain.logprobs)


def test_when_a_step_comes_to_nothing_for_the_others_of_a_batch(loaded: LoadedModel, directory: Path) -> None:
    """In the engine as its factory builds it, because the grammar of one request breaks."""
    requests = repetitive_requests()
    broken = with_masker(EngineRequest("broken", prompt(9), greedy(), max_tokens=20, seed=0), BrokenMasker("fill_mask"))
    answers = asyncio.run(served(directory, [*requests, broken]))
    assert [type(error) for error in answers.errors] == [EngineFailed]
    check(loaded, requests, answers)


def test_drafts_in_the_engine_as_its_factory_builds_it(tmp_path: Path) -> None:
    directory = write_hybrid(tmp_path)
    requests = repetitive_requests()
    answers = asyncio.run(served(directory, requests, speculation="lookup"))
    check(load_model(directory, ModelOptions(weight_type="f32")), requests, answers)


async def served(directory: Path, requests: Sequence[EngineRequest], **options: object) -> Answers:
    """The answers of an engine that runs all requests at once."""
    setup = EngineSetup(directory, {"dtype": "f32", "max_model_len": 256, "max_num_seqs": 16, **options})
    engine = factory.load(setup).build(LIVE_TOOLS, 0).engine
    answers = Answers()

    async def ask(request: EngineRequest) -> None:
        try:
            async for output in engine.generate(request):
                answers.add(output)
        except EngineFailed as error:
            answers.errors.append(error)

    await engine.start()
    try:
        await asyncio.gather(*(ask(request) for request in requests))
    finally:
        await engine.shutdown(drain_s=0.0)
    return answers


def repetitive_requests() -> list[EngineRequest]:
    """Of few different tokens, so that there is something to look up."""
    requests = []
    for number in range(12):
        sampling = msgspec.structs.replace(
            greedy(), temperature=0.7 * (number % 2), allowed_token_ids=(number, 100, 200)
        )
        passage = tuple(int(STREAM.choice(sampling.allowed_token_ids or ())) for _ in range(20 + 7 * number))
        requests.append(EngineRequest(f"r{number}", passage, sampling, max_tokens=40, seed=number))
    return requests


def greedy() -> SamplingParams:
    return SamplingParams(temperature=0.0, logprobs=0, ignore_eos=True)
