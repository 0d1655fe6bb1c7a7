"""The oracle with a disk: over restarts, with damage, and however long reads take, tokens are those of a naive loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import AbortRequest, EngineCore
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.stored_prefixes.store import Storage, StoredModel
from dragoman.prefix_store import BlockStore
from tests.engine.fake_runner import FakeRunner
from tests.engine.naive import Collector
from tests.engine.proposers import CheckedDraft
from tests.engine.stored_prefixes.fake_store import FakeDisk, FakeStore
from tests.engine.test_oracle import VOCAB_SIZE, Arrival, check_aborted, check_finished, requests, runners
from tests.support.tiers import examples

NUM_STEPS = 31


@dataclass(frozen=True)
class Life:
    """What happens to one engine from its start to its end.

    `closed_steps`: in these no read goes on. `num_damaged`: of 256 blocks, about, which cannot be read. `failing`: numbers
    of forward passes that fail.
    """

    arrivals: list[Arrival]
    closed_steps: frozenset[int]
    num_damaged: int
    is_full: bool
    is_whole: bool
    failing: frozenset[int]


@st.composite
def lives(draw: st.DrawFn) -> list[Life]:
    """Up to four engines after each other, whose prompts begin alike."""
    prefix = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=4, max_size=20)
    prefixes = draw(st.lists(prefix, min_size=1, max_size=2))
    arrivals = st.lists(
        st.builds(
            Arrival,
            step=st.sampled_from([0, 0, 1, 3, 9, 20]),
            request=requests(prefixes).flatmap(_kept),
            abort_step=st.one_of(st.none(), st.none(), st.none(), st.integers(0, NUM_STEPS)),
        ),
        min_size=1,
        max_size=6,
    )
    life = st.builds(
        Life,
        arrivals,
        closed_steps=st.frozensets(st.integers(0, NUM_STEPS - 1), max_size=20),
        num_damaged=st.sampled_from([0, 0, 20, 128]),
        is_full=st.sampled_from([False, False, False, True]),
        is_whole=st.sampled_from([True, True, False]),
        failing=st.sampled_from([frozenset(), frozenset(), frozenset(), frozenset([3]), frozenset([2, 9, 10])]),
    )
    return draw(st.lists(life, min_size=2, max_size=4))


def _kept(request: msgspec.Struct) -> st.SearchStrategy[msgspec.Struct]:
    keeps = st.sampled_from([None, None, 60.0, 0.0])
    return keeps.map(lambda keep_s: msgspec.structs.replace(request, cache_keep_s=keep_s))


class Place:
    """Where blocks are kept from one engine to the next: a disk in memory, or a real directory."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.disk = FakeDisk()

    def open(self, life: Life) -> BlockStore:
        """The store as that engine finds it."""
        self.disk.is_full = life.is_full
        self.disk.fails = lambda key: key[0] < life.num_damaged
        if self.directory is None:
            return FakeStore(self.disk)
        self.damage(life.num_damaged)
        return BlockStore.open(self.directory, 1 << 12 if life.is_full else 1 << 22)

    def damage(self, num_damaged: int) -> None:
        """Change about so many of 2560 bytes, and cut a file."""
        assert self.directory is not None
        stream = np.random.RandomState(num_damaged)
        for path in sorted(self.directory.glob("*.blocks")) if num_damaged else ():
            content = np.frombuffer(path.read_bytes(), dtype=np.uint8).copy()
            content[stream.randint(0, len(content), len(content) * num_damaged // 2560)] ^= 4
            path.write_bytes(content[: stream.randint(len(content) // 2, 2 * len(content))].tobytes())


def live(life: Life, runner: FakeRunner, config: RollingConfig, place: Place, drafts: list[CheckedDraft]) -> int:
    """Run one engine to its end, and check what it said; returns the tokens that it did not compute for the disk."""
    disk, store = place.disk, place.open(life)

    def fail(_batch: ForwardBatch) -> None:
        if runner.num_forwards in life.failing:
            raise ValueError("this one fails")

    runner.before_forward = fail
    storage = Storage(store, runner, StoredModel("a model"))
    core = EngineCore(runner, Sampler(VOCAB_SIZE), config, drafts, storage=storage)
    collector = Collector(core)
    for step in range(NUM_STEPS):
        (disk.gate.clear if step in life.closed_steps else disk.gate.set)()
        for key, arrival in enumerate(life.arrivals):
            if arrival.step == step:
                collector.add(key, arrival.request)
            if arrival.abort_step == step:
                core.inbox.put(AbortRequest(key))
        collector.step()
    disk.gate.set()
    run_to_end(collector, life.arrivals)
    assert core.stats.num_used_blocks == 0
    assert not collector.errors or life.failing
    core.close(is_whole=life.is_whole)
    assert not any(draft.mistakes for draft in drafts), "a draft model takes blocks for its own that came from disk"
    for key, arrival in enumerate(life.arrivals):
        if key in collector.errors:
            continue
        finished = [output for output in collector.outputs[key] if output.finish_reason is not None]
        if len(finished) == arrival.request.sampling.n:
            check_finished(collector, key, arrival.request, runner.model)
        else:
            assert arrival.abort_step is not None, "a request that nobody aborted did not finish"
            check_aborted(collector, key, arrival.request, runner.model)
    told = [output.num_stored_tokens for outputs in collector.outputs.values() for output in outputs]
    stats = core.stats.totals()
    assert stats.num_stored_hits is not None
    assert sum(told) <= stats.num_stored_hits
    return stats.num_stored_hits


def run_to_end(collector: Collector, arrivals: Sequence[Arrival]) -> None:
    """As the engine's loop: steps while there is work, and waits for what is posted where there is none."""
    core = collector.core
    for _ in range(4000):
        collector.step()
        is_done = not core.has_work() and not core.stats.num_waiting_requests + core.stats.num_running_requests
        if is_done and not core.has_chores() and not core.is_reading:
            return
        core.inbox.wait(lambda: core.has_work() or core.has_chores())
    raise AssertionError(f"unfinished: {arrivals}")


def fresh(runner: FakeRunner, config: RollingConfig, has_states: bool) -> FakeRunner:
    """One like it, in whose memory nothing is."""
    again = FakeRunner(
        num_blocks=[pool.num_blocks for pool in runner.pools],
        block_size=runner.block_size,
        vocab_size=VOCAB_SIZE,
        windows=[pool.window for pool in runner.pools],
        long_context_from=runner.long_context_from,
    )
    again.has_states = tuple(has_states and bool(pool.window) for pool in runner.pools)
    again.tell_rows(config.prefix_cache)
    return again


@given(
    engines=lives(),
    runner=runners(st.integers(48, 72), [1, 2, 3, 4, 8]),
    config=st.builds(
        RollingConfig,
        max_batch_tokens=st.sampled_from([4, 5, 16, 64]),
        max_num_seqs=st.integers(1, 6),
        prefix_cache=st.sampled_from(["prompt", "prompt", "all"]),
        max_prompt_logprob_rows=st.sampled_from([4, 64]),
        assumed_output_tokens=st.sampled_from([1, 256]),
    ),
    has_states=st.booleans(),
    has_draft=st.booleans(),
    is_real=st.sampled_from([False, False, True]),
)
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_every_request_gets_the_tokens_of_a_naive_loop(
    engines: list[Life], runner: FakeRunner, config: RollingConfig, has_states: bool, has_draft: bool, is_real: bool
) -> None:
    with TemporaryDirectory() as name:
        place = Place(Path(name) if is_real else None)
        num_loaded = 0
        for life in engines:
            again = fresh(runner, config, has_states)
            draft = FakeRunner(num_blocks=again.pools[0].num_blocks, block_size=again.block_size, vocab_size=VOCAB_SIZE)
            drafts = [CheckedDraft(draft, again)] if has_draft and not again.pools[0].window else []
            num_loaded += live(life, again, config, place, drafts)
    event(f"loaded: {num_loaded > 0}, real: {is_real}")
