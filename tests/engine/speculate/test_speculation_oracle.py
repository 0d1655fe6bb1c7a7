"""Speculation changes how many steps an answer takes, never the answer: whoever guesses, and however wrong."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from dragoman.engine.rolling.config import PrefixCacheMode, RollingConfig, SpeculationConfig
from dragoman.engine.rolling.core import AbortRequest, EngineCore
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.speculate.copied_text import OwnTextProposer, RecentTextsProposer
from dragoman.engine.rolling.speculate.draft_model import DraftModelProposer
from dragoman.engine.rolling.speculate.proposer import ForcedTokensProposer, Proposer
from dragoman.types import EngineRequest
from tests.engine.fake_runner import FakeRunner, reference_logits
from tests.engine.naive import Collector, make_request
from tests.engine.proposers import CheckedDraft, FunctionProposer, NoSumOfThree, Oracle, SlipperyRunner
from tests.engine.test_oracle import VOCAB_SIZE, Arrival, check_aborted, check_finished, runners, workloads
from tests.support.live_parts import with_masker
from tests.support.sampling import chi_square, chi_square_limit
from tests.support.tiers import examples

KINDS = ("right", "half right", "wrong", "lookup", "recent", "same draft", "other draft")


@st.composite
def speculating(draw: st.DrawFn) -> list[Arrival]:
    """Workloads whose requests speculate differently or not at all, some under a grammar or with a history that counts."""
    return [replace(arrival, request=draw(altered(arrival.request))) for arrival in draw(workloads())]


@st.composite
def altered(draw: st.DrawFn, request: EngineRequest) -> EngineRequest:
    sampling = msgspec.structs.replace(
        request.sampling,
        num_assistant_tokens=draw(st.sampled_from([None, None, 0, 1, 3, 9])),
        max_ngram_size=draw(st.sampled_from([None, 1, 2])),
        min_tokens=draw(st.sampled_from([0, 0, 4])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.5])),
        logit_bias=draw(st.sampled_from([{}, {5: 3.0}])),
        dry_multiplier=draw(st.sampled_from([0.0, 0.0, 0.7])),
        xtc_probability=draw(st.sampled_from([0.0, 0.5])),
        xtc_threshold=0.02,
        top_n_sigma=draw(st.sampled_from([0.0, 1.0])),
    )
    if draw(st.booleans()):
        sampling = msgspec.structs.replace(sampling, num_assistant_tokens=None, assistant_confidence_threshold=0.08)
    words = draw(st.sampled_from([(), ((3, 4), (7,))]))
    masker = draw(st.sampled_from([None, None, NoSumOfThree()]))
    return with_masker(msgspec.structs.replace(request, sampling=sampling, bad_word_ids=words), masker)


def make_proposer(kind: str, runner: FakeRunner) -> Proposer:
    """A draft model has the model's windows and no regimes, or other windows and the regimes if it is another one."""
    if kind == "lookup":
        return OwnTextProposer()
    if kind == "recent":
        return RecentTextsProposer()
    if kind in ("same draft", "other draft"):
        same = kind == "same draft"
        draft_class, proposer_class = (FakeRunner, CheckedDraft) if same else (SlipperyRunner, DraftModelProposer)
        draft = draft_class(
            num_blocks=runner.pools[0].num_blocks,
            block_size=runner.block_size,
            vocab_size=VOCAB_SIZE,
            windows=runner.model.windows if same else runner.model.windows[::-1],
            long_context_from=None if same else runner.long_context_from,
        )
        return proposer_class(draft, runner)
    return FunctionProposer(Oracle(VOCAB_SIZE, {"right": 0, "half right": 2, "wrong": 8}[kind], runner.model))


@given(
    arrivals=speculating(),
    kind=st.sampled_from(KINDS),
    runner=runners(st.sampled_from([48, 60, 72, 300]), [1, 2, 3, 4, 8]),  # 46 is the longest request
    max_batch_tokens=st.sampled_from([4, 7, 16, 64]),
    max_num_seqs=st.integers(1, 8),
    prefix_cache=st.sampled_from(["prompt", "all", "off"]),
    num_guesses=st.sampled_from([None, 4]),
)
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_every_request_gets_the_tokens_of_a_naive_loop(
    arrivals: list[Arrival],
    kind: str,
    runner: FakeRunner,
    max_batch_tokens: int,
    max_num_seqs: int,
    prefix_cache: PrefixCacheMode,
    num_guesses: int | None,
) -> None:
    assume(not (runner.pools[0].window and "draft" in kind))  # is refused
    config = RollingConfig(max_batch_tokens, max_num_seqs, prefix_cache, assumed_output_tokens=1)
    runner.tell_rows(prefix_cache)
    proposer = make_proposer(kind, runner)
    limits = SpeculationConfig(num_guesses, max_batch=2 + max_num_seqs // 2)
    core = EngineCore(
        runner, Sampler(VOCAB_SIZE), replace(config, speculation=limits), [ForcedTokensProposer(), proposer]
    )
    collector = Collector(core)
    for step in range(31):
        for key, arrival in enumerate(arrivals):
            if arrival.step == step:
                collector.add(key, arrival.request)
            if arrival.abort_step == step:
                core.inbox.put(AbortRequest(key))
        collector.step()
    collector.run()
    event(f"{kind}: drafts {core.stats.num_draft_tokens > 0}, accepted {core.stats.num_accepted_tokens > 0}")
    event(f"preempted: {core.stats.num_preemptions > 0}, copied: {runner.num_copies > 0}")
    assert core.stats.num_used_blocks == 0
    assert not collector.errors
    assert not isinstance(proposer, CheckedDraft) or not proposer.mistakes
    for key, arrival in enumerate(arrivals):
        finished = [output for output in collector.outputs[key] if output.finish_reason is not None]
        if len(finished) == arrival.request.sampling.n:
            check_finished(collector, key, arrival.request, runner.model)
        else:
            assert arrival.abort_step is not None, "a request that nobody aborted did not finish"
            check_aborted(collector, key, arrival.request, runner.model)


def test_sampled_answers_keep_their_distribution_although_most_drafts_are_wrong() -> None:
    """Three tokens of four: 64 answers, counted over 3000 seeds; the draft is always `1 1`."""
    vocab_size, temperature, prompt, num_seeds = 4, 4.0, [1, 2, 3], 3000
    proposer = FunctionProposer(lambda wish: [1, 1])
    limits = SpeculationConfig(num_assistant_tokens=2, max_batch=64)
    runner = FakeRunner(num_blocks=400, vocab_size=vocab_size)
    core = EngineCore(runner, Sampler(vocab_size), RollingConfig(speculation=limits), [proposer])
    collector = Collector(core)
    for seed in range(num_seeds):
        collector.add(seed, make_request(prompt, max_tokens=3, seed=seed, temperature=temperature, ignore_eos=True))
    collector.run()
    counts = np.zeros((vocab_size,) * 3, dtype=np.int64)
    for seed in range(num_seeds):
        counts[tuple(collector.sequence(seed).token_ids)] += 1
    expected = np.zeros(counts.shape)
    for answer in np.ndindex(counts.shape):
        logits = reference_logits([*prompt, *answer], vocab_size)[2:5] / temperature
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        expected[answer] = np.prod(shares[np.arange(3), answer])
    assert 0 < core.stats.num_accepted_tokens < core.stats.num_draft_tokens / 2
    assert chi_square(counts.reshape(-1), expected.reshape(-1)) < chi_square_limit(counts.size)
