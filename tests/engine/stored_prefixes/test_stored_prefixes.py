"""What is written to the store, when it is loaded, and who waits meanwhile; on a runner without a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count

import msgspec
import pytest

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import AbortRequest, EngineCore
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.stored_prefixes.loading import ReadCosts
from dragoman.engine.rolling.stored_prefixes.store import Storage, StoredModel
from dragoman.errors import DeadlineTooShort
from dragoman.types import ContextShift, EngineRequest
from tests.engine.fake_runner import FakeRunner
from tests.engine.naive import Collector, make_request
from tests.engine.stored_prefixes.fake_store import FakeDisk, FakeStore
from tests.engine.test_oracle import VOCAB_SIZE, check_finished
from tests.support.patience import PATIENCE_S

SIZE = 4
PROMPT = [1 + number % 23 for number in range(42)]  # ten full blocks, behind which two tokens are left


class Engine:
    """A core over a disk, and what it delivered."""

    def __init__(
        self,
        disk: FakeDisk,
        model: str = "model",
        *,
        num_blocks: int = 64,
        max_num_seqs: int = 64,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.runner = FakeRunner(num_blocks=num_blocks, block_size=SIZE, vocab_size=VOCAB_SIZE)
        self.runner.tell_rows("prompt")
        storage = Storage(FakeStore(disk), self.runner, StoredModel(model))
        config = RollingConfig(max_batch_tokens=64, max_num_seqs=max_num_seqs)
        self.core = EngineCore(self.runner, Sampler(VOCAB_SIZE), config, clock=clock, storage=storage)
        self.collector = Collector(self.core)
        self.requests: dict[int, EngineRequest] = {}

    def add(self, key: int, prompt: Sequence[int] = PROMPT, max_tokens: int = 4, keep_s: float | None = None) -> None:
        request = make_request(prompt, max_tokens, name=f"r{key}", ignore_eos=True)
        self.requests[key] = msgspec.structs.replace(request, cache_keep_s=keep_s, caller="alice")
        self.collector.add(key, self.requests[key])

    def step_until(self, is_so: Callable[[], bool]) -> None:
        """Step until something is so, which may be up to another thread."""
        end_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < end_s
            self.collector.step()
            if not self.core.has_work():
                time.sleep(0.0005)

    def run(self) -> None:
        """To the end of all requests, each of which has the tokens of a naive loop."""
        self.collector.step()
        self.step_until(lambda: all(map(self.is_done, self.requests)))
        for key, request in self.requests.items():
            check_finished(self.collector, key, request, self.runner.model)

    def is_done(self, key: int) -> bool:
        outputs = self.collector.outputs[key]
        return bool(outputs) and outputs[-1].finish_reason is not None

    def num_tokens(self, key: int) -> int:
        return len(self.collector.sequence(key).token_ids)

    def num_stored(self, key: int) -> int:
        return self.collector.outputs[key][0].num_stored_tokens

    def close(self, *, is_whole: bool = True) -> None:
        self.core.close(is_whole=is_whole)


@pytest.fixture(autouse=True)
def quick_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model computes for longer than this one."""
    monkeypatch.setattr(ReadCosts, "seconds", lambda _self, _num_bytes: 0.0)


@pytest.fixture
def disk() -> FakeDisk:
    """On which the prompt is."""
    found = FakeDisk()
    engine = Engine(found)
    engine.add(0)
    engine.run()
    engine.close()
    assert len(found.contents) == 10
    return found


def test_others_get_their_tokens_while_a_prompt_is_loaded(disk: FakeDisk) -> None:
    engine = Engine(disk)
    engine.add(0, [5, 6, 7], max_tokens=60)
    engine.collector.step()
    disk.gate.clear()
    engine.add(1)
    engine.add(2, [8, 9], max_tokens=20)  # comes later, and overtakes it
    engine.step_until(lambda: engine.num_tokens(0) > 40)
    assert engine.is_done(2)
    assert not engine.collector.outputs[1]
    disk.gate.set()
    engine.run()
    assert (engine.num_stored(1), engine.num_stored(0)) == (40, 0)
    assert engine.collector.outputs[1][0].num_cached_tokens == 40
    engine.close()


def test_requests_that_begin_alike_wait_for_one_load(disk: FakeDisk) -> None:
    engine = Engine(disk)
    disk.gate.clear()
    for key in range(3):
        engine.add(key, [*PROMPT, 3, key])
    for _ in range(3):
        engine.collector.step()
    assert not engine.core.has_work(), "a loop would turn around and around"
    disk.gate.set()
    engine.run()
    assert disk.num_reads == 10
    assert [engine.num_stored(key) for key in range(3)] == [40, 40, 40]
    engine.close()


def test_blocks_of_a_request_that_left_are_nobodys_until_they_are_read(disk: FakeDisk) -> None:
    engine = Engine(disk, num_blocks=16)
    disk.gate.clear()
    engine.add(0)
    engine.collector.step()
    engine.core.inbox.put(AbortRequest(0))
    del engine.requests[0]
    engine.add(1, [9] * 30, max_tokens=20)  # 13 of the 16 blocks, of which 10 are being read into
    engine.collector.step()
    assert not engine.core.has_work()
    disk.gate.set()
    engine.run()
    engine.close()


@pytest.mark.parametrize("num_whole", [0, 3])
def test_what_cannot_be_read_is_computed(disk: FakeDisk, num_whole: int) -> None:
    keys = list(disk.contents)
    disk.fails = lambda key: key in keys[num_whole:]
    engine = Engine(disk)
    engine.add(0)
    engine.run()
    assert engine.num_stored(0) == num_whole * SIZE
    assert engine.core.stats.num_prompt_tokens == len(PROMPT) - num_whole * SIZE
    engine.close()
    assert len(disk.contents) == 10, "it was written again"


def test_another_model_never_meets_it(disk: FakeDisk) -> None:
    engine = Engine(disk, model="another")
    engine.add(0)
    engine.run()
    assert engine.num_stored(0) == 0
    engine.close()
    assert len(disk.contents) == 20


def test_reading_that_takes_longer_than_computing_is_left(disk: FakeDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadCosts, "seconds", lambda _self, num_bytes: 1e3 * num_bytes)
    engine = Engine(disk)
    engine.add(0, [5, 6, 7])  # from here on it is known what a token takes
    engine.run()
    engine.add(1)
    engine.run()
    assert (engine.num_stored(1), disk.num_reads) == (0, 0)
    engine.close()


def test_a_quiet_engine_writes_and_the_end_writes_the_rest() -> None:
    disk = FakeDisk()
    engine = Engine(disk)
    engine.add(0)
    engine.run()
    engine.step_until(lambda: len(disk.contents) == 10)
    engine.add(1, [7] * 9)
    engine.run()
    engine.close()
    assert len(disk.contents) == 12


def test_what_is_found_again_is_written_while_others_run_and_what_leaves_memory_too() -> None:
    disk = FakeDisk()
    ticks = count()
    engine = Engine(disk, num_blocks=200, clock=lambda: float(next(ticks)))
    engine.add(0, [3, 4], max_tokens=390)
    for key in (1, 2):  # the second one finds it, beside one that goes on
        engine.add(key)
        engine.step_until(lambda key=key: engine.is_done(key))  # type: ignore[misc]
    engine.step_until(lambda: len(disk.contents) == 10)
    assert not engine.is_done(0)
    engine.close()

    disk = FakeDisk()
    engine = Engine(disk, num_blocks=30)
    engine.add(0, max_tokens=1)
    engine.step_until(lambda: engine.is_done(0))
    engine.add(1, [6] * 60, max_tokens=40)  # needs 25 blocks
    engine.step_until(lambda: engine.is_done(1))
    engine.close(is_whole=False)
    kept = Engine(disk)
    kept.add(0)
    kept.run()
    assert kept.num_stored(0) >= 5 * SIZE
    kept.close()


def test_what_a_shifted_context_holds_is_not_kept_as_its_callers_prompt() -> None:
    disk = FakeDisk()
    engine = Engine(disk)
    request = make_request(PROMPT, 40, ignore_eos=True)
    shift = ContextShift(len(PROMPT) + 6)
    engine.requests[0] = msgspec.structs.replace(request, cache_keep_s=300.0, caller="alice", shift=shift)
    engine.collector.add(0, engine.requests[0])
    engine.run()
    engine.close()
    assert len(disk.keeps) > 10
    assert sum(until is not None for until, _ in disk.keeps.values()) == 10  # the full blocks of the prompt


def test_a_caller_says_how_long(disk: FakeDisk) -> None:
    before_s = time.time()
    engine = Engine(disk)
    engine.add(0, keep_s=300.0)
    engine.add(1, [2] * 17, keep_s=60.0)
    engine.add(2, [4] * 16, keep_s=0.0)
    engine.run()
    engine.close()
    assert len(disk.contents) == 14, "what is wanted in memory alone is not written"
    found = sorted((until - before_s) // 30 for until, group in disk.keeps.values() if until and group == b"alice")
    assert found == [2.0] * 4 + [10.0] * 10

    open_to_all = Engine(disk)  # somebody else's prompt begins like one that nobody was to keep
    open_to_all.add(0, [4] * 16, keep_s=0.0)
    open_to_all.add(1, [*[4] * 16, 5], keep_s=None)
    open_to_all.run()
    open_to_all.close()
    assert len(disk.contents) == 18


def test_a_full_disk_changes_nothing() -> None:
    disk = FakeDisk()
    disk.is_full = True
    engine = Engine(disk)
    for key in range(3):
        engine.add(key)
        engine.run()
    stats = engine.core.stats.totals()
    engine.close()
    assert not disk.contents
    assert stats.num_stored_hits == stats.num_stored_written_bytes == 0


def test_a_deadline_is_not_refused_for_what_need_not_be_computed(disk: FakeDisk) -> None:
    now_s = 0.0

    def compute(_batch: ForwardBatch) -> None:
        nonlocal now_s
        now_s += 1000.0

    for has_disk in (False, True):
        engine = Engine(disk if has_disk else FakeDisk(), clock=lambda: now_s)
        engine.runner.before_forward = compute
        engine.add(0, [5] * 64, max_tokens=1)  # from here on it is known what tokens take: together 1000 s or more
        engine.run()
        request = make_request(PROMPT, 1, ignore_eos=True)
        engine.collector.add(1, msgspec.structs.replace(request, deadline_s=time.time() + 400))
        engine.step_until(lambda engine=engine: 1 in engine.collector.errors or engine.is_done(1))  # type: ignore[misc]
        assert isinstance(engine.collector.errors.get(1), DeadlineTooShort) is not has_disk
        engine.close()


def test_with_one_place_nobody_takes_it_from_a_request_that_is_loaded(disk: FakeDisk) -> None:
    engine = Engine(disk, max_num_seqs=1)
    disk.gate.clear()
    engine.add(0)
    engine.add(1, [5, 6, 7], max_tokens=200)
    engine.collector.step()
    disk.gate.set()
    engine.step_until(lambda: engine.is_done(0))
    assert engine.num_tokens(1) == 0
    engine.run()
    engine.close()
