"""Beam search in the engine equals a naive search that recomputes every beam, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import numpy.typing as npt
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from dragoman.engine.beams import BeamCandidates, BeamSearch, num_candidates
from dragoman.engine.rolling.config import RollingConfig, SpeculationConfig
from dragoman.engine.rolling.core import AbortRequest, EngineCore
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sample.sampler_state import SamplerState
from dragoman.engine.rolling.sample.temperature_and_top_p import ranked
from dragoman.engine.rolling.speculate.copied_text import OwnTextProposer
from dragoman.errors import CapacityError, InvalidParameter
from dragoman.types import EngineRequest, FinishReason, Logprob
from tests.engine.fake_runner import FakeModel, FakeRunner, last_logits
from tests.engine.naive import Collector, Generated, make_request, naive_sequence
from tests.engine.test_oracle import repetitions, runners, thinking
from tests.support.letters import letter_watch
from tests.support.live_parts import masker_of, with_criterion, with_masker
from tests.support.maskers import ByForks
from tests.support.tiers import examples

VOCAB_SIZE = 24
NUM_SLOTS = 240


@dataclass
class NaiveBeam:
    """One beam of the naive search."""

    state: SamplerState
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[list[Logprob]] = field(default_factory=list)

    def extended(self, slot: int, token_id: int, logprob: float, top: list[Logprob]) -> NaiveBeam:
        state = self.state.fork(slot)
        state.observe(token_id)
        return NaiveBeam(state, [*self.token_ids, token_id], [*self.logprobs, logprob], [*self.tops, top])


def naive_beams(request: EngineRequest, model: FakeModel) -> list[Generated]:
    """The best n hypotheses, every beam's logits computed from scratch."""
    sampler, params = Sampler(VOCAB_SIZE), request.sampling
    ends = dict.fromkeys(params.stop_token_ids, FinishReason.STOP_TOKEN)
    if not params.ignore_eos:
        ends |= dict.fromkeys(request.eos_token_ids, FinishReason.EOS)
    search = BeamSearch(params, len(ends), request.max_tokens)
    width = num_candidates(params, len(ends))
    beams = {0: NaiveBeam(sampler.new_state(request, 0, masker_of(request), letter_watch(request)))}
    finished: dict[int, tuple[NaiveBeam, FinishReason]] = {}

    def end_reason(slot: int, token_id: int) -> FinishReason | None:
        is_long = len(beams[slot].token_ids) + 1 >= params.min_tokens
        if token_id in ends and (is_long or params.grammar is not None):
            return ends[token_id]
        watch = beams[slot].state.watch
        is_loop = watch is not None and watch.ends_with(token_id)
        return FinishReason.REPETITION if is_long and is_loop else None

    while not search.is_finished:
        candidates: list[BeamCandidates | None] = [None] * params.num_beams
        raws, tops = {}, {}
        for slot, beam in beams.items():
            tokens = [*request.prompt_ids, *beam.token_ids]
            logits = last_logits(tokens, VOCAB_SIZE, model, len(request.prompt_ids))
            raws[slot] = sampler.raw_logprobs(logits[0].copy())
            tops[slot] = raws[slot].top(params.logprobs or 0)
            processed = sampler.process(logits, [beam.state])[0]
            best = ranked(processed, width)
            candidates[slot] = BeamCandidates(best, processed[best])
        step = search.advance(candidates, end_reason)
        for one in step.hypotheses:
            logprob = raws[one.parent].of(one.token_id)
            beam = beams[one.parent].extended(0, one.token_id, logprob, tops[one.parent])
            finished[one.number] = (beam, one.reason)
        beams = {
            slot: beams[one.parent].extended(slot, one.token_id, raws[one.parent].of(one.token_id), tops[one.parent])
            for slot, one in step.continuations.items()
        }
    results = []
    for _, number in search.ranking[: params.n]:
        beam, reason = finished[number]
        wanted = params.logprobs is not None
        results.append(Generated(beam.token_ids, reason, beam.logprobs if wanted else [], beam.tops if wanted else []))
    return results


@st.composite
def beam_requests(draw: st.DrawFn) -> EngineRequest:
    num_groups, size = draw(st.sampled_from([(1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1)]))
    width = num_groups * size
    token_ids = st.integers(0, VOCAB_SIZE - 1)
    request = make_request(
        draw(st.lists(token_ids, min_size=1, max_size=12)),
        max_tokens=draw(st.integers(1, 10)),
        num_beams=width,
        num_beam_groups=num_groups,
        n=draw(st.integers(1, width)),
        diversity_penalty=draw(st.sampled_from([0.0, 0.7])) if num_groups > 1 else 0.0,
        length_penalty=draw(st.sampled_from([0.0, 1.0, 2.0, -1.0])),
        early_stopping=draw(st.sampled_from([True, False, "never"])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
        logit_bias=draw(st.sampled_from([{}, {3: 2.0, 0: 1.0}])),
        min_tokens=draw(st.sampled_from([0, 0, 3])),
        stop_token_ids=tuple(draw(st.lists(token_ids, max_size=2))),
        logprobs=draw(st.sampled_from([None, 0, 2])),
        ignore_eos=draw(st.booleans()),
        repetition_detection=draw(repetitions()),
    )
    request = msgspec.structs.replace(
        request,
        priority=draw(st.sampled_from([0, 0, 1, -1])),
        caller=draw(st.sampled_from(["", "a"])),
        thinking=draw(thinking()),
    )
    return with_masker(request, EveryOther()) if draw(st.booleans()) else request


class EveryOther(ByForks):
    """A grammar: even and odd tokens in turn, as the first one began; end-of-sequence (0) at any time."""

    def __init__(self, parity: int | None = None) -> None:
        self._parity = parity

    def fork(self) -> EveryOther:
        return EveryOther(self._parity)

    def fill_mask(self, bitmask_row: npt.NDArray[np.uint32]) -> None:
        bitmask_row[:] = {None: 0xFFFFFFFF, 0: 0x55555555, 1: 0xAAAAAAAB}[self._parity]

    def advance(self, token_id: int) -> bool:
        if self._parity is not None and token_id and token_id % 2 != self._parity:
            return False
        self._parity = 1 - token_id % 2
        return True

    def validate(self, token_ids: Sequence[int]) -> int:
        state = self.fork()
        return next((i for i, token_id in enumerate(token_ids) if not state.advance(token_id)), len(token_ids))

    @property
    def is_finished(self) -> bool:
        return False


plain_requests = st.builds(
    lambda prompt, seed: make_request(prompt, max_tokens=12, seed=seed, temperature=1.0),
    st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=12),
    st.integers(0, 5),
)


@given(
    requests=st.lists(st.one_of(beam_requests(), beam_requests(), plain_requests), min_size=1, max_size=5),
    abort_step=st.one_of(st.none(), st.integers(1, 12)),
    runner=runners(st.integers(112, 200), [1, 2, 4, 8]),  # four beams of 22 tokens each, and the reserve
    config=st.builds(
        RollingConfig,
        max_batch_tokens=st.sampled_from([4, 7, 64]),
        max_num_seqs=st.integers(4, 9),
        prefix_cache=st.sampled_from(["prompt", "all", "off"]),
        assumed_output_tokens=st.sampled_from([1, 256]),
    ),
    speculates=st.booleans(),
)
@settings(max_examples=examples(120), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_every_search_gives_the_hypotheses_of_a_naive_one(
    requests: list[EngineRequest],
    abort_step: int | None,
    runner: FakeRunner,
    config: RollingConfig,
    speculates: bool,
) -> None:
    runner.tell_rows(config.prefix_cache)
    proposers = [OwnTextProposer()] if speculates else []
    limits = SpeculationConfig(num_assistant_tokens=5, max_ngram_size=1)
    core = EngineCore(runner, Sampler(VOCAB_SIZE), replace(config, speculation=limits), proposers)
    collector = Collector(core)
    for key, request in enumerate(requests):
        collector.add(key, request)
    if abort_step is not None:
        for _ in range(abort_step):
            collector.step()
        core.inbox.put(AbortRequest(0))
    collector.run()
    event(f"preempted: {core.stats.num_preemptions > 0}")
    assert core.stats.num_used_blocks == 0
    for key, request in enumerate(requests):
        if key in collector.errors:
            assert isinstance(collector.errors[key], CapacityError)
            continue
        if abort_step is not None and key == 0:
            continue
        params = request.sampling
        searched = params.num_beams > 1
        expected = (
            naive_beams(request, runner.model) if searched else [naive_sequence(request, 0, VOCAB_SIZE, runner.model)]
        )
        for index, sequence in enumerate(expected):
            assert collector.sequence(key, index) == sequence, (key, index)


def test_beams_that_can_never_run_side_by_side_are_refused_with_both_numbers() -> None:
    core = EngineCore(
        FakeRunner(num_blocks=8, block_size=4, vocab_size=VOCAB_SIZE), Sampler(VOCAB_SIZE), RollingConfig()
    )
    collector = Collector(core)
    collector.add(0, make_request([1, 2], max_tokens=10, num_beams=4))
    collector.run()
    assert "needs 12 KV blocks, the cache holds 8" in str(collector.errors[0])


def test_more_beams_than_sequences_may_run_are_refused_by_name() -> None:
    runner = FakeRunner(num_blocks=80, block_size=4, vocab_size=VOCAB_SIZE)
    core = EngineCore(runner, Sampler(VOCAB_SIZE), RollingConfig(max_num_seqs=3))
    collector = Collector(core)
    collector.add(0, make_request([1, 2], num_beams=4))
    collector.run()
    (error,) = collector.errors.values()
    assert isinstance(error, InvalidParameter)
    assert str(error) == "num_beams (best_of in OpenAI's APIs) is 4, at most 3 sequences run at once (max_num_seqs)"


def test_a_stop_criterion_ends_a_beam() -> None:
    request = make_request([1, 2], max_tokens=6, num_beams=2, n=2, ignore_eos=True)
    core = EngineCore(
        FakeRunner(num_blocks=80, block_size=4, vocab_size=VOCAB_SIZE), Sampler(VOCAB_SIZE), RollingConfig()
    )
    collector = Collector(core)
    collector.add(0, with_criterion(request, _even_pair))
    collector.run()
    for index in range(2):
        generated = collector.sequence(0, index)
        stops = [i for i in range(1, len(generated.token_ids) + 1) if _even_pair(generated.token_ids[:i])]
        if generated.finish_reason is FinishReason.STOP_STRING:
            assert stops == [len(generated.token_ids)]
        else:
            assert not stops
    assert any(collector.sequence(0, index).finish_reason is FinishReason.STOP_STRING for index in range(2))


def _even_pair(token_ids: object) -> bool:
    """Stands for a stop string: two even tokens in a row."""
    pair = list(token_ids)[-2:]  # type: ignore[call-overload]
    return len(pair) == 2 and all(token_id % 2 == 0 for token_id in pair)
