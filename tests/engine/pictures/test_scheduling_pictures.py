"""Pictures that must not be cut: chunks, prefixes, preemption, windows, forks and pacing, on a runner without a model."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.pictures import EmbeddedPicture, PromptPictures
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest
from dragoman.errors import CapacityError
from dragoman.models.facts import PictureFacts
from dragoman.types import EngineRequest, Picture, PictureSpan
from tests.engine.fake_runner import FakeRunner
from tests.engine.naive import Collector, make_request, naive_sequence
from tests.support.tiers import examples

PLACEHOLDER = 30
MAX_BATCH_TOKENS = 24
FACTS = PictureFacts(PLACEHOLDER, is_bidirectional=True)

Layout = list[tuple[int, int, int]]
"""Words, then a picture: how many words, which picture, how many placeholders it has."""

LAYOUT = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2), st.integers(1, 14)), max_size=4)


def seeing_request(layout: Layout, num_last: int, seed: int, **sampling: float) -> tuple[EngineRequest, EngineRequest]:
    """A request, and the same with tokens of their own in the places of pictures."""
    ids: list[int] = []
    stand_ins: list[int] = []
    spans = []
    for num_words, number, length in layout:
        words = [(7 * i) % 29 for i in range(num_words)]
        ids += words
        stand_ins += words
        spans.append(PictureSpan(Picture(1, 1, b"\0\0\0", f"{number} {length}"), len(ids), length))
        ids += [PLACEHOLDER] * length
        stand_ins += [1000 * (number + 1) + i for i in range(length)]
    ids += [3] * num_last
    stand_ins += [3] * num_last
    request = make_request(ids, 12, seed=seed, name=f"r{seed}", ignore_eos=True, temperature=0.0, **sampling)
    return (
        msgspec.structs.replace(request, pictures=tuple(spans)),
        msgspec.structs.replace(request, prompt_ids=tuple(stand_ins)),
    )


def adding(key: int, request: EngineRequest, plain: EngineRequest) -> AddRequest:
    """The command for a request, with its pictures as `FakeRunner` reads embeddings."""
    embedded = [
        EmbeddedPicture(
            np.array(
                [(plain.prompt_ids[p], s.begin, s.begin + s.length - 1) for p in range(s.begin, s.begin + s.length)],
                dtype=np.float32,
            ),
            (0, 0),
        )
        for s in request.pictures
    ]
    return AddRequest(key, request, pictures=PromptPictures(request, embedded, FACTS) if embedded else None)


@settings(max_examples=examples(150))
@given(
    st.lists(st.tuples(LAYOUT, st.integers(1, 6), st.sampled_from([1, 1, 2, 3])), min_size=1, max_size=5),
    st.sampled_from(["prompt", "all", "off"]),
    st.sampled_from([(0,), (0, 20), (20,)]),
    st.integers(24, 60),
    st.sampled_from([0.0, 1.01]),
)
def test_no_picture_is_cut_and_every_token_is_right(
    asked: Sequence[tuple[Layout, int, int]],
    prefix_cache: str,
    windows: tuple[int, ...],
    num_blocks: int,
    max_slowdown: float,
) -> None:
    runner = FakeRunner(num_blocks=num_blocks, windows=windows)
    config = RollingConfig(
        MAX_BATCH_TOKENS,
        max_num_seqs=4,
        prefix_cache=prefix_cache,  # type: ignore[arg-type]
        max_slowdown=max_slowdown,
        assumed_output_tokens=1,
    )
    core = EngineCore(runner, Sampler(runner.vocab_size), config)
    collector = Collector(core)
    requests = [seeing_request(layout, num_last, key, n=n) for key, (layout, num_last, n) in enumerate(asked)]
    for key, (request, plain) in enumerate(requests):
        core.inbox.put(adding(key, request, plain))
    collector.run()
    for key, (request, plain) in enumerate(requests):
        if key in collector.errors:
            assert isinstance(collector.errors[key], CapacityError)
            continue
        for index in range(request.sampling.n):
            expected = naive_sequence(plain, index, runner.vocab_size, runner.model)
            assert collector.sequence(key, index).token_ids == expected.token_ids
    assert len(collector.errors) < len(requests) or num_blocks < 40


def test_a_picture_longer_than_a_step_is_refused_with_both_numbers() -> None:
    runner = FakeRunner(num_blocks=64)
    core = EngineCore(runner, Sampler(runner.vocab_size), RollingConfig(MAX_BATCH_TOKENS))
    collector = Collector(core)
    request, plain = seeing_request([(2, 0, MAX_BATCH_TOKENS - 1)], 2, 0)
    core.inbox.put(adding(0, request, plain))
    collector.run()
    with pytest.raises(CapacityError, match=r"a picture of 23 tokens .* at most 22"):
        raise collector.errors[0]


def test_a_picture_does_not_wait_for_the_end_of_whoever_decodes() -> None:
    """Prompts are paced to pieces that a picture does not fit into; it is computed whole all the same."""
    runner = FakeRunner(num_blocks=128)
    core = EngineCore(runner, Sampler(runner.vocab_size), RollingConfig(MAX_BATCH_TOKENS, max_slowdown=1.01))
    collector = Collector(core)
    collector.add(0, make_request([1, 2, 3], 200, ignore_eos=True))
    for _ in range(5):
        collector.step()
    request, plain = seeing_request([(3, 0, 14), (1, 1, 14)], 2, 1)
    core.inbox.put(adding(1, request, plain))
    collector.run()
    steps = {key: [output.finish_reason for output in collector.outputs[key]] for key in (0, 1)}
    assert len(steps[0]) == 200
    expected = naive_sequence(plain, 0, runner.vocab_size, runner.model)
    assert collector.sequence(1).token_ids == expected.token_ids
    assert core.stats.num_steps < 210, "the picture came in steps of its own, after all others"
