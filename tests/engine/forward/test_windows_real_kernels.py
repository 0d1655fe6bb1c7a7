"""On the real kernels: a cache that gives back what windows have passed answers bit for bit like one that keeps all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from dragoman.engine.rolling.blocks.block_manager import CachePool
from dragoman.engine.rolling.config import RollingConfig, SpeculationConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.forward.runner import ForwardBatch, ModelRunner
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest
from dragoman.engine.rolling.speculate.copied_text import OwnTextProposer
from dragoman.engine.rolling.speculate.draft_model import DraftModelProposer
from dragoman.engine.rolling.speculate.proposer import Proposer
from dragoman.engine.rolling.stats import RollingStats
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.models.profile import computes_alike
from dragoman.types import EngineOutput, EngineRequest, SamplingParams
from tests.engine.integrity import check_core
from tests.support.cpu import EXACT_F32
from tests.support.random_checkpoint import RandomShape, write_checkpoint
from tests.support.tiers import width
from tests.support.windowed_model import windows_in_layers

SHAPE = RandomShape("windows", seed=8, hidden_size=128, head_size=32, num_layers=4, head_std=0.3)
WINDOWS = {"full and windowed": (0, 70, 0, 33), "windowed alone": (48, 48, 90, 48)}
PLENTY = 200


@dataclass
class Answer:
    """Everything a client could see of one sequence."""

    token_ids: list[int]
    logprobs: list[float]


class KeepsEverything:
    """A ModelRunner over another one, whose layers all read the same tables: nobody is told of windows."""

    def __init__(self, inner: OpenVinoRunner) -> None:
        self.block_size, self.vocab_size, self.max_model_len = inner.block_size, inner.vocab_size, inner.max_model_len
        self.long_context_from = inner.long_context_from
        self.pools: tuple[CachePool, ...] = (CachePool(PLENTY),)
        self._inner = inner

    def forward(self, batch: ForwardBatch) -> Any:
        return self._inner.forward(batch)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]], kind: int = 0) -> None:
        for every in range(len(self._inner.pools)):
            self._inner.copy_blocks(pairs, every)

    def close(self) -> None:
        self._inner.close()


@pytest.fixture(scope="module", params=WINDOWS)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    directory = write_checkpoint(SHAPE, tmp_path_factory.mktemp("model"))
    with windows_in_layers(WINDOWS[request.param]):
        return load_model(directory, ModelOptions(weight_type="f32"))


def make_requests() -> list[EngineRequest]:
    """Short and long prompts, some with a shared prefix, several sequences or beams each."""
    stream = np.random.RandomState(5)
    prefix = stream.randint(0, SHAPE.vocab_size, 150).tolist()
    made = []
    for number in range(12):
        own = stream.randint(0, SHAPE.vocab_size, int(stream.randint(2, 160))).tolist()
        sampling = SamplingParams(temperature=0.0, logprobs=0)
        if number % 3 == 1:
            sampling = SamplingParams(temperature=0.8, n=2, logprobs=0)
        if number % 6 == 2:
            sampling = SamplingParams(num_beams=3, n=2, logprobs=0)
        prompt = tuple(prefix + own if number % 2 else own)
        made.append(EngineRequest(f"r{number}", prompt, sampling, max_tokens=40, seed=number))
    return made


REQUESTS = make_requests()


def run(
    runner: ModelRunner,
    config: RollingConfig,
    *waves: Sequence[EngineRequest],
    proposers: Sequence[Proposer] = (),
    speculation: SpeculationConfig = SpeculationConfig(),  # noqa: B008 - it cannot change
) -> tuple[dict[tuple[str, int], Answer], RollingStats]:
    """Answers by request and sequence, and what the engine counted; a wave comes when the last one is answered."""
    core = EngineCore(runner, Sampler(SHAPE.vocab_size), replace(config, speculation=speculation), proposers)
    answers: dict[tuple[str, int], Answer] = {}
    for wave in waves:
        for key, request in enumerate(wave):
            core.inbox.put(AddRequest(key, request))
        deliveries = core.step()
        while deliveries or core.has_work():
            for delivery in deliveries:
                assert isinstance(delivery.item, EngineOutput), delivery.item
                answer = answers.setdefault((delivery.item.request_id, delivery.item.index), Answer([], []))
                answer.token_ids += delivery.item.token_ids
                answer.logprobs += delivery.item.logprobs or []
            deliveries = core.step()
            check_core(core)
    return answers, core.stats


@pytest.fixture(scope="module")
def kept(loaded: LoadedModel) -> dict[tuple[str, int], Answer]:
    """Each request's answers, alone, whole, with a cache that keeps everything."""
    config = RollingConfig(max_batch_tokens=4096, prefix_cache="off")
    answers: dict[tuple[str, int], Answer] = {}
    for request in REQUESTS:
        answers |= run(KeepsEverything(OpenVinoRunner(loaded, PLENTY)), config, [request])[0]
    return answers


def check_same(
    answers: dict[tuple[str, int], Answer], kept: dict[tuple[str, int], Answer], *, is_exact: bool = EXACT_F32
) -> None:
    assert answers.keys() == kept.keys()
    for name, answer in kept.items():
        assert answers[name].token_ids == answer.token_ids, name
        expected = answer.logprobs if is_exact else pytest.approx(answer.logprobs, abs=1e-4)
        assert answers[name].logprobs == expected, name


def num_blocks(loaded: LoadedModel, full: int, windowed: int) -> list[int]:
    return [windowed if kind.window else full for kind in loaded.facts.cache_kinds]


CHUNKINGS = list(product([4096, 200, 67], ["off", "prompt"]))


@pytest.mark.varies("which kernels keep every bit depends on the processor")
@pytest.mark.parametrize(("max_batch_tokens", "prefix_cache"), width(CHUNKINGS, [(67, "prompt")]))
def test_every_bit_is_that_of_a_cache_that_keeps_everything(
    loaded: LoadedModel, kept: dict[tuple[str, int], Answer], max_batch_tokens: int, prefix_cache: Any
) -> None:
    runner = OpenVinoRunner(loaded, num_blocks(loaded, 150, 120))
    config = RollingConfig(max_batch_tokens, prefix_cache=prefix_cache)
    answers, _ = run(runner, config, REQUESTS)
    check_same(answers, kept)


def test_preemption_changes_nothing(loaded: LoadedModel) -> None:
    sampling = SamplingParams(temperature=0.8, logprobs=0)
    prompts = [tuple(range(number, number + 10 + 2 * number)) for number in range(8)]
    growing = [EngineRequest(f"r{n}", prompt, sampling, max_tokens=110, seed=n) for n, prompt in enumerate(prompts)]
    alone, _ = run(
        KeepsEverything(OpenVinoRunner(loaded, PLENTY)), RollingConfig(), *([request] for request in growing)
    )
    runner = OpenVinoRunner(loaded, num_blocks(loaded, 24, 18))
    answers, stats = run(runner, RollingConfig(200, assumed_output_tokens=1), growing)
    assert stats.num_preemptions > 0
    check_same(answers, alone, is_exact=computes_alike(loaded.facts, loaded.profile))  # decoded, then as a prompt


def test_a_prompt_that_goes_on_behind_a_cached_one_gets_the_same_bits(
    loaded: LoadedModel, kept: dict[tuple[str, int], Answer]
) -> None:
    sharing = [request for number, request in enumerate(REQUESTS) if number % 2]
    runner = OpenVinoRunner(loaded, num_blocks(loaded, 150, 60))
    answers, stats = run(runner, RollingConfig(200), *([request] for request in sharing))
    assert stats.num_prefix_hits == (len(sharing) - 1) * 128
    check_same(answers, {name: answer for name, answer in kept.items() if name in answers})


def test_drafts_that_are_looked_up_or_guessed_by_a_draft_model_change_no_token(
    loaded: LoadedModel, kept: dict[tuple[str, int], Answer]
) -> None:
    limits = SpeculationConfig(num_assistant_tokens=4, max_ngram_size=1, max_batch=16)
    makers: list[Any] = [lambda target: OwnTextProposer()]
    if not loaded.facts.cache_kinds[0].window:
        makers.append(lambda target: DraftModelProposer(OpenVinoRunner(loaded, 150), target))
    for make in makers:
        runner = OpenVinoRunner(loaded, num_blocks(loaded, 150, 120))
        answers, stats = run(runner, RollingConfig(200), REQUESTS, proposers=[make(runner)], speculation=limits)
        check_same(answers, kept, is_exact=computes_alike(loaded.facts, loaded.profile))
        assert stats.num_accepted_tokens > 0
