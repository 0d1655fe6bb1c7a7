"""On the real kernels neighbours, guesses, preemption, and how prompts are cut change no bit of an answer.

In default types and in others, greedy and seeded. Where packed weights are multiplied by kernels of OpenVINO that have no
integer dot products, this holds for f32 alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count, product

import msgspec
import pytest

from dragoman.compose import engine_tools
from dragoman.config.resolve import demo_model_dir
from dragoman.engine.base import EngineTools
from dragoman.engine.rolling.config import RollingConfig, SpeculationConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest
from dragoman.engine.rolling.speculate.copied_text import OwnTextProposer, RecentTextsProposer
from dragoman.engine.rolling.speculate.draft_model import DraftModelProposer
from dragoman.engine.rolling.speculate.proposer import ForcedTokensProposer, Proposer, Wish
from dragoman.engine.rolling.stats import RollingStats
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from dragoman.types import EngineOutput, EngineRequest, Grammar, SamplingParams, Thinking
from tests.engine.integrity import check_core
from tests.engine.proposers import FunctionProposer
from tests.support.cpu import EXACT_PACKED
from tests.support.tiers import width

MANY_BLOCKS, FEW_BLOCKS = 64, 13
THINKING = Thinking("<t>", ("</t>",), (300, 7, 400, 301, 302, 9), is_open=True, budget=6)
WHOLE = 512  # tokens of a step, more than a prompt has
LENGTHS = (1, 2, 31, 32, 33, 34, 64, 65, 90, 130)  # of prompts: around the ends of blocks
PRECISIONS = {
    "f32": ModelOptions(weight_type="f32"),
    "default": ModelOptions(weight_type="int8"),
    "u8 cache": ModelOptions(weight_type="int8", kv_type="u8"),
    "int4": ModelOptions(weight_type="int4"),
}


@dataclass
class Answer:
    """Tokens and log-probabilities, which tell whether a bit of the logits was another one."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@pytest.fixture(scope="module", params=width(list(PRECISIONS), ["f32", "default", "int4"]))
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    if request.param != "f32" and not EXACT_PACKED:
        pytest.skip("on this processor the kernels of packed weights round by how many tokens a step has")
    return load_model(demo_model_dir(), PRECISIONS[request.param])


def asked() -> list[EngineRequest]:
    """Greedy and seeded requests with prompts of random tokens; some begin alike, some say something twice or think."""
    stream = random.Random(3)
    requests = []
    common = [stream.randrange(5, 1500) for _ in range(40)]
    for number in range(10):
        prompt = [stream.randrange(5, 1500) for _ in range(LENGTHS[number])]
        if number % 3 == 0:
            prompt = (prompt[: len(prompt) // 2 + 1] * 2)[: len(prompt)]
        elif len(prompt) > len(common):
            prompt[: len(common)] = common
        sampling = SamplingParams(temperature=0.0 if number % 2 else 0.8, logprobs=0, ignore_eos=True)
        thinking = THINKING if number % 4 == 1 else None
        most = stream.choice([20, 40])
        requests.append(EngineRequest(f"{number}", tuple(prompt), sampling, most, seed=number, thinking=thinking))
    return requests


@cache
def tools() -> EngineTools:
    return engine_tools(load_tokenizer(demo_model_dir()))


def adding(key: int, request: EngineRequest) -> AddRequest:
    """The command for a request, with its grammar if it has one."""
    grammar = request.sampling.grammar
    masker = None if grammar is None else tools().compile_grammar(grammar)
    return AddRequest(key, request, masker, watch=tools().watch_answer(request))


def run(
    loaded: LoadedModel,
    requests: dict[int, EngineRequest],
    num_blocks: int = MANY_BLOCKS,
    proposers: Sequence[Proposer] = (),
    num_guesses: int | None = None,
    draft: LoadedModel | None = None,
    max_batch_tokens: int = WHOLE,
) -> tuple[dict[int, Answer], RollingStats]:
    """The answers of requests that come in this order, one in every second step. `draft`: a model that guesses, too."""
    runner = OpenVinoRunner(loaded, num_blocks)
    if draft is not None:
        proposers = [*proposers, DraftModelProposer(OpenVinoRunner(draft, num_blocks), runner)]
    config = RollingConfig(max_batch_tokens, assumed_output_tokens=1)
    limits = SpeculationConfig(num_guesses, max_batch=64, pads_steps=True)
    # By this clock steps take the same whatever they compute, so that guesses pay on every machine.
    clock = count(step=0.001).__next__
    core = EngineCore(runner, Sampler(runner.vocab_size), replace(config, speculation=limits), proposers, clock)
    answers = {key: Answer() for key in requests}
    coming = list(requests.items())
    num_steps = 0
    while coming or core.has_work():
        if coming and num_steps % 2 == 0:
            key, request = coming.pop(0)
            core.inbox.put(adding(key, request))
        num_steps += 1
        for key, output in core.step():
            assert isinstance(output, EngineOutput), output
            answers[key].token_ids += output.token_ids
            answers[key].logprobs += output.logprobs or []
        check_core(core)
    runner.close()
    return answers, core.stats


@pytest.fixture(scope="module")
def alone(loaded: LoadedModel) -> dict[int, Answer]:
    """What every request gets that is alone, decoded plainly."""
    answers: dict[int, Answer] = {}
    for key, request in enumerate(asked()):
        answers |= run(loaded, {key: request})[0]
    return answers


def half_right(alone: dict[int, Answer]) -> FunctionProposer:
    """Knows the answers, and is wrong now and then."""
    stream = random.Random(5)

    def guess(wish: Wish) -> list[int]:
        sequence = wish.sequence
        answer = alone[int(sequence.group.request.request_id)].token_ids
        known = answer[sequence.num_generated_tokens :][: wish.max_tokens]
        return [token_id if stream.random() < 0.8 else token_id // 2 for token_id in known]

    return FunctionProposer(guess)


COMPANIES = list(product([MANY_BLOCKS, FEW_BLOCKS], ["none", "half right", "looked up"], [96, 33]))
FEW_COMPANIES = [(MANY_BLOCKS, "none", 33), (FEW_BLOCKS, "half right", 96), (MANY_BLOCKS, "looked up", 96)]


@pytest.mark.varies("which kernels keep every bit depends on the processor")
@pytest.mark.parametrize(("num_blocks", "guesses", "max_batch_tokens"), width(COMPANIES, FEW_COMPANIES))
def test_every_answer_is_bit_for_bit_that_of_a_lone_request_decoded_plainly(
    loaded: LoadedModel, alone: dict[int, Answer], num_blocks: int, guesses: str, max_batch_tokens: int
) -> None:
    requests = list(enumerate(asked()))
    random.Random(f"{num_blocks} {guesses}").shuffle(requests)
    proposers: dict[str, list[Proposer]] = {
        "none": [],
        "half right": [half_right(alone)],
        "looked up": [OwnTextProposer(), RecentTextsProposer()],
    }
    num_guesses = {"half right": 5, "looked up": 3}.get(guesses)
    answers, stats = run(
        loaded, dict(requests), num_blocks, proposers[guesses], num_guesses, max_batch_tokens=max_batch_tokens
    )
    assert answers == alone
    assert stats.num_prefix_hits > 0
    assert (stats.num_preemptions > 0) is (num_blocks == FEW_BLOCKS)
    if guesses != "looked up":  # whether answers repeat anything depends on the processor
        assert (stats.num_draft_tokens > 0) is (guesses != "none")
    if guesses == "half right":
        assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens


RECORD = {"type": "object", "properties": {"name": {"enum": ["Rome", "Oslo"]}, "temperature": {"type": "integer"}}}


@pytest.mark.parametrize("seed", width(range(4), [0]))
def test_with_guesses_of_every_kind_and_as_many_as_pay_too(loaded: LoadedModel, seed: int) -> None:
    """In caches of random sizes and orders of arrival, so that preemption comes at random moments."""
    stream = random.Random(seed)
    schema = json.dumps({**RECORD, "required": ["name", "temperature"], "additionalProperties": False})
    requests = asked()
    for number in range(0, 10, 4):
        sampling = msgspec.structs.replace(
            requests[number].sampling, grammar=Grammar("json_schema", schema), ignore_eos=False
        )
        requests[number] = msgspec.structs.replace(requests[number], sampling=sampling)
    keys = stream.sample(range(10), 6)
    alone: dict[int, Answer] = {}
    for key in keys:
        alone |= run(loaded, {key: requests[key]})[0]
    kinds: list[Proposer] = [ForcedTokensProposer(), OwnTextProposer(), RecentTextsProposer(), half_right(alone)]
    num_blocks, num_guesses = stream.randrange(13, 18), stream.choice([None, None, 3])
    answers, stats = run(loaded, {key: requests[key] for key in keys}, num_blocks, kinds, num_guesses, loaded, 96)
    assert answers == alone
    assert stats.num_accepted_tokens > 0
