"""A sequence whose context is full goes on as a new request would whose prompt are the tokens that it kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace

import msgspec
import pytest

from dragoman.engine.base import Capabilities, Health
from dragoman.engine.rolling.config import RollingConfig, SpeculationConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.errors import CapacityError, UnsupportedFeature
from dragoman.server.observation.metrics import MetricsRegistry
from dragoman.types import ContextShift, EngineRequest, FinishReason, Picture, PictureSpan
from tests.engine.fake_runner import FakeRunner
from tests.engine.naive import Collector, make_request, naive_sequence
from tests.engine.proposers import CheckedDraft
from tests.engine.schedule.bench import Bench

VOCAB_SIZE = 24
PROMPT = range(1, 10)
CONTEXT = 16


def asking(shift: ContextShift | None = None, max_tokens: int = 40, n: int = 1) -> EngineRequest:
    """A request whose answer is several contexts long."""
    shift = shift or ContextShift(CONTEXT)
    request = make_request(PROMPT, max_tokens, seed=3, temperature=1.0 if n > 1 else 0.0, n=n, ignore_eos=True)
    return msgspec.structs.replace(request, shift=shift)


def run(runner: FakeRunner, config: RollingConfig, *requests: EngineRequest) -> Collector:
    """Run the requests together, in a context as long as theirs."""
    collector = Collector(EngineCore(runner, Sampler(VOCAB_SIZE), config))
    for key, request in enumerate(requests):
        collector.add(key, request)
    collector.run()
    assert not collector.errors
    return collector


@pytest.mark.parametrize(
    ("num_kept", "num_dropped", "kept"),
    [
        (0, 0, range(7, 16)),  # 15 have been read: the first 7 go
        (4, 0, [*range(4), *range(9, 16)]),
        (4, 2, [*range(4), *range(6, 16)]),
        (9, 0, [*range(9), *range(12, 16)]),  # all of the prompt
        (99, 0, [*range(12), *range(13, 16)]),  # at least three go on to change
        (0, 99, range(14, 16)),
    ],
)
def test_what_follows_a_shift_is_what_a_new_request_gets(num_kept: int, num_dropped: int, kept: Sequence[int]) -> None:
    shift = ContextShift(CONTEXT, num_kept, num_dropped)
    config = RollingConfig(max_model_len=CONTEXT)
    runner = FakeRunner(vocab_size=VOCAB_SIZE)
    runner.tell_rows(config.prefix_cache)
    answer = run(runner, config, asking(shift)).sequence(0)
    assert (len(answer.token_ids), answer.finish_reason) == (40, FinishReason.LENGTH)
    read = [*PROMPT, *answer.token_ids][:CONTEXT]
    fresh = make_request([read[place] for place in kept], CONTEXT - len(kept), ignore_eos=True)
    found = run(runner, config, fresh).sequence(0).token_ids
    begin = CONTEXT - len(PROMPT)
    assert found == answer.token_ids[begin : begin + len(found)]
    assert answer == naive_sequence(asking(shift), 0, VOCAB_SIZE, runner.model)


def test_metrics_count_every_shift() -> None:
    for num_dropped, max_tokens, num_shifts in ((7, 7, 0), (7, 8, 1), (7, 40, 5), (3, 40, 11)):
        config = RollingConfig(max_model_len=CONTEXT)
        request = asking(ContextShift(CONTEXT, 0, num_dropped), max_tokens)
        stats = run(FakeRunner(vocab_size=VOCAB_SIZE), config, request, request).core.stats
        model = SimpleNamespace(name="m", engine=SimpleNamespace(health=partial(Health, True), stats=stats.totals))
        text = MetricsRegistry(partial(list, [model])).render().decode()
        assert f'dragoman_context_shifts_total{{model="m"}} {2 * num_shifts}.0' in text


def test_siblings_that_were_shifted_share_no_prompt() -> None:
    for max_num_seqs, num_blocks in ((1, 64), (2, 64), (3, 8)):  # one waits for the others, or is preempted
        for longest in (10, CONTEXT):
            request = asking(ContextShift(longest), n=3)
            config = RollingConfig(max_num_seqs=max_num_seqs, assumed_output_tokens=1)
            collector = run(FakeRunner(vocab_size=VOCAB_SIZE, num_blocks=num_blocks), config, request)
            assert (collector.core.stats.num_preemptions > 0) == (num_blocks == 8)
            for index in range(3):
                assert collector.sequence(0, index) == naive_sequence(request, index, VOCAB_SIZE)


def test_only_what_is_new_in_the_context_is_computed_again_and_the_caller_is_charged_for_it() -> None:
    for num_kept, num_again in ((8, 5), (9, 5), (0, 9), (7, 8)):  # blocks have four tokens; nine are the prompt
        bench = Bench(RollingConfig(prefix_cache="off"))
        group = bench.add(len(PROMPT))
        group.request = msgspec.structs.replace(group.request, shift=ContextShift(CONTEXT, num_kept))
        [sequence] = group.sequences
        while not sequence.is_full:
            bench.step()
        before = bench.scheduler.queue.shares.counters()[""]
        bench.scheduler.shift(sequence)
        assert bench.scheduler.queue.shares.counters()[""] == before + num_again
        assert [entry.num_new_tokens for entry in bench.step().entries] == [num_again]
        assert bench.stats.num_preemptions == 0


def test_guesses_after_a_shift_are_of_the_tokens_that_the_model_reads() -> None:
    for num_kept in (0, 8):
        runner = FakeRunner(vocab_size=VOCAB_SIZE, num_blocks=99)
        draft = CheckedDraft(FakeRunner(vocab_size=VOCAB_SIZE, num_blocks=99), runner)
        limits = SpeculationConfig(num_assistant_tokens=3)
        core = EngineCore(runner, Sampler(VOCAB_SIZE), RollingConfig(speculation=limits), [draft])
        collector = Collector(core)
        collector.add(0, asking(ContextShift(CONTEXT, num_kept)))
        collector.run()
        assert not draft.mistakes
        assert core.stats.num_accepted_tokens == core.stats.num_draft_tokens > 10
        assert collector.sequence(0) == naive_sequence(asking(ContextShift(CONTEXT, num_kept)), 0, VOCAB_SIZE)


def test_a_request_that_cannot_be_shifted_is_refused() -> None:
    core = EngineCore(FakeRunner(vocab_size=VOCAB_SIZE), Sampler(VOCAB_SIZE), RollingConfig(max_model_len=CONTEXT))
    collector = Collector(core)
    collector.add(0, asking(ContextShift(9)))
    collector.add(1, asking(ContextShift(17)))
    collector.add(2, msgspec.structs.replace(asking(), shift=None))
    collector.run()
    wrong = "9 prompt tokens + max_tokens"
    assert [collector.errors[key].message for key in range(3)] == [
        f"{wrong} 1 = 10 tokens, the context is shifted at 9",
        f"{wrong} 8 = 17 tokens, the model's context is 16",
        f"{wrong} 40 = 49 tokens, the model's context is 16",
    ]
    assert all(isinstance(error, CapacityError) for error in collector.errors.values())
    beams = msgspec.structs.replace(make_request(PROMPT, 4, num_beams=2), shift=ContextShift(CONTEXT))
    picture = PictureSpan(Picture(1, 1, b"rgb", ""), 0, 1)
    seeing = msgspec.structs.replace(asking(), pictures=(picture,))
    for request, context_shift in ((asking(), False), (beams, True), (seeing, True)):
        able = Capabilities(CONTEXT, VOCAB_SIZE, beam_search=True, pictures=True, context_shift=context_shift)
        with pytest.raises(UnsupportedFeature, match="is not supported by this engine: it must be left out") as caught:
            able.check(request)
        assert caught.value.param == "shift"
