"""Grammar masks are computed while the forward runs, and are the same as if they were computed afterwards."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.types import EngineRequest, SamplingParams
from tests.engine.fake_runner import FakeRunner
from tests.engine.naive import Collector, make_request
from tests.support.live_parts import with_masker
from tests.support.maskers import ByForks

VOCAB_SIZE = 24


class OnlyOdd(ByForks):
    """A grammar of odd tokens. `computed` is set when a mask was computed; `computed_on` names the threads."""

    def __init__(self) -> None:
        self.computed = threading.Event()
        self.computed_on: set[str] = set()
        self.error: Exception | None = None

    def fork(self) -> OnlyOdd:
        return self

    def fill_mask(self, bitmask_row: npt.NDArray[np.uint32]) -> None:
        self.computed_on.add(threading.current_thread().name)
        self.computed.set()
        if self.error is not None:
            raise self.error
        bitmask_row[:] = 0xAAAAAAAA

    def advance(self, token_id: int) -> bool:
        return token_id % 2 == 1

    def validate(self, token_ids: Sequence[int]) -> int:
        return next((i for i, token_id in enumerate(token_ids) if token_id % 2 == 0), len(token_ids))

    @property
    def is_finished(self) -> bool:
        return False


def with_grammar(masker: OnlyOdd) -> EngineRequest:
    params = SamplingParams(temperature=0.0)
    return with_masker(EngineRequest("g", (1, 2, 3), params, 6, 0), masker)


def run(requests: list[EngineRequest], runner: FakeRunner) -> Collector:
    core = EngineCore(runner, Sampler(VOCAB_SIZE), RollingConfig())
    collector = Collector(core)
    for key, request in enumerate(requests):
        collector.add(key, request)
    collector.run()
    core.close()
    return collector


def test_the_mask_is_ready_before_the_forward_ends() -> None:
    masker = OnlyOdd()

    def before_forward(_batch: ForwardBatch) -> None:
        assert masker.computed.wait(timeout=30)
        masker.computed.clear()

    runner = FakeRunner(vocab_size=VOCAB_SIZE, before_forward=before_forward)
    collector = run([with_grammar(masker)], runner)
    assert all(token_id % 2 for token_id in collector.sequence(0).token_ids)
    assert len(collector.sequence(0).token_ids) == 6
    assert all(name.startswith("dragoman-masks") for name in masker.computed_on)


def test_a_batch_without_grammars_starts_no_thread() -> None:
    before = {thread.name for thread in threading.enumerate()}
    run([make_request([1, 2])], FakeRunner(vocab_size=VOCAB_SIZE))
    assert {thread.name for thread in threading.enumerate()} <= before


@pytest.mark.parametrize("failing", [0, 1])
def test_a_grammar_that_breaks_on_the_other_thread_fails_its_request_only(failing: int) -> None:
    maskers = [OnlyOdd(), OnlyOdd()]
    maskers[failing].error = ValueError("broken")
    collector = run([with_grammar(masker) for masker in maskers], FakeRunner(vocab_size=VOCAB_SIZE))
    assert set(collector.errors) == {failing}
    assert len(collector.sequence(1 - failing).token_ids) == 6
