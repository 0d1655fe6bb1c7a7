"""Beams wait for each other: a search is taken in exactly if its beams can run side by side, and then it gets to its end."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from dragoman.engine.rolling import core as core_module
from dragoman.engine.rolling.config import PrefixCacheMode, RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.schedule.capacity import check_capacity, num_beam_blocks
from dragoman.errors import CapacityError
from dragoman.types import EngineRequest, FinishReason
from tests.engine.fake_runner import PLAIN, FakeModel, FakeRunner
from tests.engine.naive import Collector, make_request, naive_sequence
from tests.support.tiers import examples

VOCAB_SIZE = 24
MODES = ("prompt", "all", "off")

widths = st.integers(2, 6)
prompts = st.lists(st.integers(1, VOCAB_SIZE - 1), min_size=1, max_size=20)
lengths = st.integers(1, 14)
block_sizes = st.sampled_from([1, 2, 4, 8])
models = st.builds(
    FakeModel,
    windows=st.sampled_from([(0,), (0, 3), (0, 9), (0, 2, 14), (5,), (1,), (16,)]),
    long_context_from=st.sampled_from([None, None, 2, 11, 20]),
)
configs = st.builds(
    RollingConfig,
    max_batch_tokens=st.sampled_from([4, 9, 64]),
    max_num_seqs=st.sampled_from([6, 9]),
    prefix_cache=st.sampled_from(MODES),
    assumed_output_tokens=st.sampled_from([1, 256]),
)


def searching(prompt: list[int], width: int, max_tokens: int, **sampling: Any) -> EngineRequest:
    """A search that gets to its limit: nothing ends a beam."""
    return make_request(prompt, max_tokens=max_tokens, num_beams=width, n=width, ignore_eos=True, **sampling)


def parted(prompt: list[int], width: int, max_tokens: int) -> EngineRequest:
    """A search whose beams have nothing in common but their prompt: each is a group of its own."""
    return searching(prompt, width, max_tokens, num_beam_groups=width, diversity_penalty=50.0)


def make_runner(num_blocks: int | list[int], block_size: int, model: FakeModel = PLAIN) -> FakeRunner:
    return FakeRunner(
        num_blocks=num_blocks,
        block_size=block_size,
        vocab_size=VOCAB_SIZE,
        max_model_len=400,
        windows=model.windows,
        long_context_from=model.long_context_from,
    )


def make_collector(
    num_blocks: int | list[int], block_size: int, config: RollingConfig, model: FakeModel = PLAIN
) -> Collector:
    return Collector(EngineCore(make_runner(num_blocks, block_size, model), Sampler(VOCAB_SIZE), config))


def ends(collector: Collector, key: int) -> list[tuple[int, FinishReason | None]]:
    """Length and reason of each of the key's sequences."""
    return [(len(output.token_ids), output.finish_reason) for output in collector.outputs[key]]


def num_beams_need(request: EngineRequest, block_size: int) -> int:
    return num_beam_blocks(request, FakeRunner(block_size=block_size), RollingConfig())[0]


def num_needed(request: EngineRequest, block_size: int) -> int:
    num_tokens = len(request.prompt_ids) + request.max_tokens
    return max(num_beams_need(request, block_size), -(-num_tokens // block_size))  # the second for any request


def fewest_blocks(request: EngineRequest, block_size: int, model: FakeModel, config: RollingConfig) -> list[int]:
    """Of each kind, the fewest with which the request is taken in if there are plenty of the others."""
    num_kinds, fewest = len(model.windows), []
    for kind in range(num_kinds):
        for count in range(1, 999):
            counts = [count if other == kind else 999 for other in range(num_kinds)]
            with suppress(CapacityError):
                check_capacity(request, make_runner(counts, block_size, model), config)
                break
        fewest.append(count)
    return fewest


@pytest.mark.parametrize(
    ("num_prompt", "width", "max_tokens", "num_blocks"),
    [
        pytest.param(2, 4, 10, 12, id="11 positions each, in 3 blocks of 4; the 12th is never computed"),
        pytest.param(16, 4, 5, 8, id="4 blocks of the prompt together, and 1 each"),
        pytest.param(18, 4, 7, 12, id="4 blocks of the prompt together, and 2 each"),
        pytest.param(18, 4, 1, 5, id="nobody computes anything behind the prompt"),
    ],
)
def test_a_search_that_just_fits_is_taken_in(num_prompt: int, width: int, max_tokens: int, num_blocks: int) -> None:
    request = parted([1 + i % 20 for i in range(num_prompt)], width, max_tokens)
    collector = make_collector(num_blocks, 4, RollingConfig(prefix_cache="off"))
    collector.add(0, request)
    collector.run()
    assert ends(collector, 0) == [(max_tokens, FinishReason.LENGTH)] * width


@settings(max_examples=examples(150))
@given(prompts, widths, lengths, block_sizes, configs)
def test_a_search_runs_with_exactly_the_blocks_that_are_asked_of_it(
    prompt: list[int], width: int, max_tokens: int, block_size: int, config: RollingConfig
) -> None:
    for request in (searching(prompt, width, max_tokens), parted(prompt, width, max_tokens)):
        num_blocks = num_needed(request, block_size)
        collector = make_collector(num_blocks, block_size, config)
        collector.add(0, request)
        collector.run()
        assert not collector.errors
        assert ends(collector, 0) == [(max_tokens, FinishReason.LENGTH)] * width
        assert collector.core.stats.num_preemptions == 0
        if num_blocks > 1:
            smaller = make_collector(num_blocks - 1, block_size, config)
            smaller.add(0, request)
            smaller.run()
            assert isinstance(smaller.errors[0], CapacityError)


@settings(max_examples=examples(150))
@given(prompts, widths, lengths, block_sizes, configs, models)
def test_with_windows_or_regimes_a_search_runs_with_the_blocks_that_are_asked_of_it(
    prompt: list[int],
    width: int,
    max_tokens: int,
    block_size: int,
    config: RollingConfig,
    model: FakeModel,
) -> None:
    for request in (searching(prompt, width, max_tokens), parted(prompt, width, max_tokens)):
        num_blocks = fewest_blocks(request, block_size, model, config)
        collector = make_collector(num_blocks, block_size, config, model)
        collector.add(0, request)
        collector.run()
        assert not collector.errors
        assert ends(collector, 0) == [(max_tokens, FinishReason.LENGTH)] * width
        boundary = model.long_context_from
        if boundary is None or not len(prompt) <= boundary < len(prompt) + max_tokens - 1:
            assert collector.core.stats.num_preemptions == 0, "nobody has to begin anew"


@settings(max_examples=examples(60))
@given(prompts, widths, st.integers(2, 14), block_sizes, st.sampled_from(MODES))
def test_with_one_block_fewer_beams_that_part_could_not_run_side_by_side(
    prompt: list[int], width: int, max_tokens: int, block_size: int, mode: PrefixCacheMode
) -> None:
    assume(len(prompt) == 1 or len(prompt) % block_size != 1 % block_size)  # as one needs more only after a preemption
    request = parted(prompt, width, max_tokens)
    num_blocks = num_beams_need(request, block_size) - 1
    collector = make_collector(num_blocks, block_size, RollingConfig(prefix_cache=mode))
    collector.add(0, request)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_module, "check_capacity", lambda *_: None)
        with pytest.raises(RuntimeError, match="none can run"):
            collector.run()


def test_siblings_share_no_block_that_would_leave_the_prompts_last_token_alone() -> None:
    """Preempted beams once found too few blocks for all of them, and the engine died: none could run."""
    requests = [make_request([1], 3, temperature=1.0, ignore_eos=True), searching([1, 1, 1], 2, 3)]
    config = RollingConfig(max_batch_tokens=4, max_num_seqs=6, assumed_output_tokens=1)
    fewest = max(fewest_blocks(request, 2, PLAIN, config)[0] for request in requests)
    collector = make_collector([fewest], 2, config, PLAIN)
    for key, request in enumerate(requests):
        collector.add(key, request)
    collector.run()
    assert not collector.errors


@settings(max_examples=examples(150))
@given(
    searches=st.lists(st.tuples(prompts, widths, lengths, st.booleans()), min_size=1, max_size=3),
    others=st.lists(st.tuples(prompts, lengths, st.sampled_from([1, 1, 2, 3])), max_size=4),
    order=st.randoms(use_true_random=False),
    delays=st.lists(st.integers(0, 4), min_size=7, max_size=7),
    block_size=block_sizes,
    config=configs,
    model=models,
)
def test_a_search_that_fits_gets_to_its_end_whoever_takes_blocks_away_meanwhile(
    searches: list[tuple[list[int], int, int, bool]],
    others: list[tuple[list[int], int, int]],
    order: Any,
    delays: list[int],
    block_size: int,
    config: RollingConfig,
    model: FakeModel,
) -> None:
    requests = [(parted if parts else searching)(prompt, width, size) for prompt, width, size, parts in searches]
    requests += [
        make_request(prompt, max_tokens=size, n=n, temperature=1.0, ignore_eos=True) for prompt, size, n in others
    ]
    order.shuffle(requests)
    needed = [fewest_blocks(request, block_size, model, config) for request in requests]
    collector = make_collector([max(counts) for counts in zip(*needed, strict=True)], block_size, config, model)
    for key, (request, delay) in enumerate(zip(requests, delays, strict=False)):
        collector.add(key, request)
        for _ in range(delay):
            collector.step()
    collector.run()
    event(f"preempted: {collector.core.stats.num_preemptions > 0}")
    assert not collector.errors
    assert collector.core.stats.num_used_blocks == 0
    for key, request in enumerate(requests):
        if request.sampling.num_beams > 1:
            assert ends(collector, key) == [(request.max_tokens, FinishReason.LENGTH)] * request.sampling.n
        else:
            for index in range(request.sampling.n):
                assert collector.sequence(key, index) == naive_sequence(request, index, VOCAB_SIZE, model)
