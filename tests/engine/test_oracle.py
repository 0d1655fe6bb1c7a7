"""The one test that covers the engine: whatever the batch looks like, a request's tokens are those of a naive loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from dragoman.engine.rolling.blocks.block_manager import CachePool, longest_sequence
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import AbortRequest, EngineCore
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.types import ContextShift, EngineRequest, RepetitionDetection, Thinking
from tests.engine.fake_runner import PLAIN, FakeModel, FakeRunner
from tests.engine.naive import Collector, Generated, make_request, naive_prompt_logprobs, naive_sequence
from tests.support.tiers import examples

VOCAB_SIZE = 24

WINDOWS = ((0,), (0,), (0, 3), (0, 9), (0, 1), (0, 2, 14), (5,), (16,), (7, 3))
"""Of each cache kind; smaller and larger than blocks and chunks."""


@dataclass(frozen=True)
class Arrival:
    """A request that comes at `step`, and leaves at `abort_step` unless it has finished."""

    step: int
    request: EngineRequest
    abort_step: int | None


@st.composite
def thinking(draw: st.DrawFn) -> Thinking | None:
    """Reasoning between letters that come now and then, which ends soon."""
    if draw(st.booleans()):
        return None
    closing = st.lists(st.integers(1, VOCAB_SIZE - 1), min_size=1, max_size=3).map(tuple)
    return Thinking(
        draw(st.sampled_from(["a", "bc"])),
        draw(st.sampled_from([("d",), ("ef", "g")])),
        draw(closing),
        is_open=draw(st.booleans()),
        recurs=draw(st.booleans()),
        budget=draw(st.sampled_from([None, 0, 1, 2, 5])),
        repetition=draw(repetitions()),
        reclosing_ids=draw(closing),
    )


def repetitions() -> st.SearchStrategy[RepetitionDetection | None]:
    """Patterns of which random tokens have some."""
    return st.one_of(st.none(), st.builds(RepetitionDetection, st.integers(0, 3), st.just(1), st.integers(2, 3)))


@st.composite
def requests(draw: st.DrawFn, prefixes: list[list[int]]) -> EngineRequest:
    """A request whose prompt may begin like another one's."""
    token_ids = st.integers(0, VOCAB_SIZE - 1)
    prompt = [*draw(st.sampled_from(prefixes)), *draw(st.lists(token_ids, min_size=1, max_size=12))]
    n = draw(st.sampled_from([1, 1, 1, 2, 3]))
    request = make_request(
        prompt,
        max_tokens=draw(st.integers(0, 14)),
        seed=draw(st.integers(0, 3)),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        n=n,
        best_of=draw(st.sampled_from([None, None, n + 1])),
        logprobs=draw(st.sampled_from([None, 0, 2])),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 1])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
        ignore_eos=draw(st.booleans()),
        stop_token_ids=tuple(draw(st.lists(token_ids, max_size=1))),
        repetition_detection=draw(repetitions()),
    )
    return msgspec.structs.replace(
        request,
        priority=draw(st.sampled_from([0, 0, 0, 1, -1])),
        share=draw(st.sampled_from([1, 1, 5])),
        is_background=draw(st.sampled_from([False, False, False, True])),
        caller=draw(st.sampled_from(["", "a", "b"])),
        cache_salt=draw(st.sampled_from(["", "", "s"])),
        thinking=draw(thinking()),
        shift=draw(shifts(len(prompt))),
    )


def shifts(num_prompt: int) -> st.SearchStrategy[ContextShift | None]:
    """At lengths that most answers to a prompt of so many tokens reach, some of them several times."""
    lengths = st.integers(num_prompt + 1, num_prompt + 6)
    kept = st.one_of(st.just(0), st.integers(0, num_prompt + 6))
    return st.one_of(st.none(), st.builds(ContextShift, lengths, kept, st.sampled_from([0, 0, 1, 2, 99])))


@st.composite
def workloads(draw: st.DrawFn) -> list[Arrival]:
    """Up to nine requests; several share one of two prefixes, most come together."""
    prefixes = draw(st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=20), min_size=1, max_size=2))
    return draw(
        st.lists(
            st.builds(
                Arrival,
                step=st.sampled_from([0, 0, 0, 1, 3, 9, 20]),
                request=requests(prefixes),
                abort_step=st.one_of(st.none(), st.none(), st.integers(0, 30)),
            ),
            min_size=1,
            max_size=9,
        )
    )


def expected_sequences(request: EngineRequest, model: FakeModel) -> list[Generated]:
    """What the naive loop makes of the request, in the order in which the engine numbers the sequences."""
    sampling = request.sampling
    drawn = [naive_sequence(request, index, VOCAB_SIZE, model) for index in range(sampling.num_sequences)]
    if sampling.num_sequences == sampling.n:
        return drawn
    scored = msgspec.structs.replace(
        request, sampling=msgspec.structs.replace(sampling, logprobs=sampling.logprobs or 0)
    )
    scores = [sum(naive_sequence(scored, index, VOCAB_SIZE, model).logprobs) for index in range(sampling.num_sequences)]
    ranked = sorted(range(sampling.num_sequences), key=lambda index: -scores[index])
    return [drawn[index] for index in ranked[: sampling.n]]


def check_finished(collector: Collector, key: int, request: EngineRequest, model: FakeModel = PLAIN) -> None:
    """Everything that key got is what the naive loop computes."""
    for index, expected in enumerate(expected_sequences(request, model)):
        got = collector.sequence(key, index)
        assert (got.token_ids, got.finish_reason) == (expected.token_ids, expected.finish_reason)
        assert (got.logprobs, got.top_logprobs) == (expected.logprobs, expected.top_logprobs)
    outputs = collector.outputs[key]
    wants_prompt = request.sampling.prompt_logprobs is not None
    assert outputs[0].prompt_logprobs == (naive_prompt_logprobs(request, VOCAB_SIZE, model) if wants_prompt else None)
    assert all(output.prompt_logprobs is None for output in outputs[1:])


def check_aborted(collector: Collector, key: int, request: EngineRequest, model: FakeModel = PLAIN) -> None:
    """What came before the abort is the beginning of the right answer; of ranked sequences nothing may have come."""
    for index, expected in enumerate(expected_sequences(request, model)):
        got = collector.sequence(key, index).token_ids
        assert got == expected.token_ids[: len(got)]


@st.composite
def runners(draw: st.DrawFn, num_slots: st.SearchStrategy[int], block_sizes: Sequence[int]) -> FakeRunner:
    """With room for so many tokens; of kinds with a window for fewer, as long as a sequence of any length can run."""
    windows, block_size = draw(st.sampled_from(WINDOWS)), draw(st.sampled_from(block_sizes))
    full = -(-draw(num_slots) // block_size)
    share = draw(st.sampled_from([0.4, 0.7, 1.0]))
    blocks = [max(int(full * share), fewest_blocks(window, block_size)) if window else full for window in windows]
    boundary = draw(st.sampled_from([None, None, 3, 12, 21]))
    return FakeRunner(
        num_blocks=blocks,
        block_size=block_size,
        vocab_size=VOCAB_SIZE,
        windows=windows,
        long_context_from=boundary,
    )


def fewest_blocks(window: int, block_size: int) -> int:
    """With which a kind with this window takes sequences of any length."""
    return next(n for n in range(1, 99) if longest_sequence(CachePool(n, window), block_size) is None)


@given(
    arrivals=workloads(),
    runner=runners(st.integers(48, 72), [1, 2, 3, 4, 8]),  # 46 is the longest request
    config=st.builds(
        RollingConfig,
        max_batch_tokens=st.sampled_from([4, 5, 7, 16, 64]),
        max_num_seqs=st.integers(1, 8),
        prefix_cache=st.sampled_from(["prompt", "all", "off"]),
        max_prompt_logprob_rows=st.sampled_from([4, 9, 64]),
        max_slowdown=st.sampled_from([0.0, 1.1, 2.5]),
        assumed_output_tokens=st.sampled_from([1, 256]),
        has_states=st.booleans(),
    ),
)
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_every_request_gets_the_tokens_of_a_naive_loop(
    arrivals: list[Arrival], runner: FakeRunner, config: RollingConfig
) -> None:
    runner.tell_rows(config.prefix_cache)
    core = EngineCore(runner, Sampler(VOCAB_SIZE), config)
    collector = Collector(core)
    for step in range(31):
        for key, arrival in enumerate(arrivals):
            if arrival.step == step:
                collector.add(key, arrival.request)
            if arrival.abort_step == step:
                core.inbox.put(AbortRequest(key))
        collector.step()
    collector.run()
    is_shifted = any(
        len(expected_sequences(one.request, runner.model)[0].token_ids) + len(one.request.prompt_ids)
        > one.request.shift.longest
        for one in arrivals
        if one.request.shift
    )
    event(f"shifted: {is_shifted}")
    event(f"preempted: {core.stats.num_preemptions > 0}, prefix hits: {core.stats.num_prefix_hits > 0}")
    assert core.stats.num_used_blocks == 0
    assert not collector.errors
    for key, arrival in enumerate(arrivals):
        finished = [output for output in collector.outputs[key] if output.finish_reason is not None]
        if len(finished) == arrival.request.sampling.n:
            check_finished(collector, key, arrival.request, runner.model)
        else:
            assert arrival.abort_step is not None, "a request that nobody aborted did not finish"
            check_aborted(collector, key, arrival.request, runner.model)
