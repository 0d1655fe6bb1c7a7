"""A replica, and its run in virtual time: the engine's real step loop over a runner that only lets time pass."""

from __future__ import annotations

import heapq
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from dragoman.engine.base import MemoryNeeds
from dragoman.engine.factory import EngineOptionError, EngineSetup
from dragoman.engine.rolling.blocks.block_manager import CachePool, blocks_for, most_blocks
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import AbortRequest, EngineCore
from dragoman.engine.rolling.forward.runner import ForwardBatch, StepWork
from dragoman.engine.rolling.needs import expected_engine, settled_options
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest
from dragoman.tools.plan.costs import CostsError, StepCosts
from dragoman.tools.plan.router import Router
from dragoman.tools.plan.workload import Arrival, Weights, Workload, draw_prefixes, request_of
from dragoman.types import EngineOutput, EngineRequest

_VOCAB_SIZE = 2  # the tokens do not matter
_STRETCH_S = 2.0  # about the length of a machine's slow or fast period
_MOST_EARLIER_REQUESTS = 1000  # requests that fill a replica's prefix cache before the first arrival


@dataclass(frozen=True, slots=True)
class Replica:
    """An engine and its cache. `block_bytes`: per block of each cache kind. `needs`: the uses of its memory."""

    limits: RollingConfig
    pools: tuple[CachePool, ...]
    block_bytes: tuple[int, ...]
    block_size: int
    max_model_len: int
    long_context_from: int | None = None
    needs: MemoryNeeds = field(default_factory=lambda: MemoryNeeds(0))
    vocab_size: int = 2

    @property
    def token_bytes(self) -> float:
        """Cache bytes per token in the layers that keep all tokens."""
        kinds = zip(self.pools, self.block_bytes, strict=True)
        return sum(size / self.block_size for pool, size in kinds if not pool.window)

    @property
    def cache_bytes(self) -> int:
        return sum(pool.num_blocks * size for pool, size in zip(self.pools, self.block_bytes, strict=True))

    def sequence_bytes(self, num_tokens: int) -> int:
        """Cache bytes of a sequence of `num_tokens` tokens."""
        counts = self._blocks_of(num_tokens)
        return sum(count * size for count, size in zip(counts, self.block_bytes, strict=True))

    def num_sequences(self, num_tokens: int) -> int:
        """The number of sequences of `num_tokens` tokens that fit together, at most `max_num_seqs`; 0 = not even one."""
        counts = self._blocks_of(num_tokens)
        fits = [pool.num_blocks // count for pool, count in zip(self.pools, counts, strict=True)]
        return min(*fits, self.limits.max_num_seqs)

    def _blocks_of(self, num_tokens: int) -> list[int]:
        needed = blocks_for(num_tokens, self.block_size)
        return [
            min(needed, most_blocks(pool.window, self.block_size)) if pool.window else needed for pool in self.pools
        ]


def replica_of(setup: EngineSetup, needs: MemoryNeeds, available_bytes: int) -> Replica:
    """The rolling engine's replica on a machine with `available_bytes` of memory.

    Raises: EngineOptionError, also for speculation, which is not simulated; ModelError, OSError.
    """
    options = settled_options(setup)
    if options.speculates:
        name = "speculation" if options.draft_model is None else "draft_model"
        raise EngineOptionError(name, "must not be set: a plan does not simulate speculation")
    engine = expected_engine(setup.model_dir, options, max(available_bytes - needs.weights, 0))
    kinds = zip(engine.num_blocks, engine.shape.windows, strict=True)
    return Replica(
        limits=engine.limits,
        pools=tuple(CachePool(count, window) for count, window in kinds),
        block_bytes=engine.shape.block_bytes,
        block_size=engine.shape.block_size,
        max_model_len=engine.limits.max_model_len or engine.facts.max_position,
        long_context_from=engine.facts.long_context_from,
        needs=needs,
        vocab_size=engine.facts.vocab_size,
    )


class VirtualTime:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class _Slowness:
    """The machine's slow and fast moments in simulated time: random stretches of the measured ones.

    They follow time, not steps: another program takes the machine for a second, whatever runs meanwhile.
    """

    def __init__(self, known: Sequence[tuple[float, float]]) -> None:
        self._known = known
        self._ends_s = list(accumulate(seconds for seconds, _ in known))
        self._chance = random.Random(0)
        self._index = 0
        self._moment_s = self._stretch_s = 0.0  # the rest of the stretch

    def pass_over(self, cost_s: float) -> float:
        """The duration of a step of this cost now, in seconds."""
        if not self._known:
            return cost_s
        if self._stretch_s <= 0:
            self._begin(bisect_left(self._ends_s, self._chance.random() * self._ends_s[-1]))
            self._stretch_s = _STRETCH_S
        taken_s = 0.0
        while cost_s * self._known[self._index][1] > self._moment_s:
            taken_s += self._moment_s
            cost_s -= self._moment_s / self._known[self._index][1]
            self._begin((self._index + 1) % len(self._known))
        last_s = cost_s * self._known[self._index][1]
        self._moment_s -= last_s
        self._stretch_s -= taken_s + last_s
        return taken_s + last_s

    def _begin(self, index: int) -> None:
        self._index, self._moment_s = index, self._known[index][0]


class CostRunner:
    """A ModelRunner whose steps take their cost, with equally likely tokens. `is_free`: steps take no time.

    Durations of equal steps vary as in reality: the pacer learns from them, and delays prompts more if they vary more.
    """

    def __init__(self, replica: Replica, costs: StepCosts, time: VirtualTime) -> None:
        self.block_size, self.pools = replica.block_size, replica.pools
        self.vocab_size, self.max_model_len = _VOCAB_SIZE, replica.max_model_len
        self.long_context_from = replica.long_context_from
        self.is_free = False
        self._costs, self._time = costs, time
        self._slowness = _Slowness(costs.slowness)
        self._num_tokens = 0  # of the last step

    def forward(self, batch: ForwardBatch) -> npt.NDArray[np.float32]:
        if not self.is_free:
            work = StepWork.of(batch)
            cost_s = self._costs.seconds(work, is_change=work.num_tokens != self._num_tokens)
            self._num_tokens = work.num_tokens
            self._time.now_s += self._slowness.pass_over(cost_s)
        return np.zeros((len(batch.logit_indices), _VOCAB_SIZE), dtype=np.float32)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]], kind: int = 0) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class RequestTimes:
    """The times of a request's arrival and of its tokens, in seconds."""

    arrival_s: float
    token_s: list[float] = field(default_factory=list)


class SimulatedReplica:
    """One engine in virtual time. `busy_s`: its time in steps."""

    def __init__(self, replica: Replica, costs: StepCosts) -> None:
        """Raises: CostsError if the costs are of a model with other cache kinds."""
        if len(costs.context_s) != len(replica.pools):
            expected = f"context_s and pair_s have {len(costs.context_s)} numbers each, the model has"
            raise CostsError(f"{expected} {len(replica.pools)} kinds of cache")
        self._http_s = costs.http_s
        self._time = VirtualTime()
        self._runner = CostRunner(replica, costs, self._time)
        self._core = EngineCore(self._runner, Sampler(_VOCAB_SIZE), replica.limits, clock=self._time)
        self._is_waiting = False  # a request is in the inbox
        self._times: dict[int, RequestTimes] = {}
        self._unfinished: dict[int, int] = {}  # key -> remaining tokens
        self._ends_s: list[float] = []  # a heap
        self.busy_s = 0.0
        self.stats = self._core.stats

    @property
    def now_s(self) -> float:
        """The end of its last step or idle period."""
        return self._time.now_s

    @property
    def has_work(self) -> bool:
        return self._is_waiting or self._core.has_work()

    def num_outstanding(self, time_s: float) -> int:
        """The unfinished requests at that time, which never goes back."""
        while self._ends_s and self._ends_s[0] <= time_s:
            heapq.heappop(self._ends_s)
        return len(self._unfinished) + len(self._ends_s)

    def add(self, key: int, request: EngineRequest, time_s: float) -> RequestTimes:
        """Add a request, in order of arrival; the engine sees it after the running step."""
        if not self.has_work:
            self._time.now_s = max(self._time.now_s, time_s)
        times = self._times[key] = RequestTimes(time_s)
        self._unfinished[key] = request.max_tokens
        self._core.inbox.put(AddRequest(key, request))
        self._is_waiting = True
        return times

    def run_until(self, time_s: float) -> None:
        while self.has_work and self._time.now_s < time_s:
            self.step()

    def step(self) -> list[int]:
        """Run a step; returns the keys of the finished requests. Raises: RuntimeError if a request fails."""
        begin_s = self._time.now_s
        self._is_waiting = False
        deliveries = self._core.step()
        self.busy_s += self._time.now_s - begin_s
        return [key for key, item in deliveries if self._note(key, item)]

    def _note(self, key: int, output: EngineOutput | Exception) -> bool:
        """Record the time of tokens; True if they are the request's last."""
        if not isinstance(output, EngineOutput):
            raise RuntimeError(f"a simulated request failed: {output}") from output
        self._times[key].token_s += [self._time.now_s + self._http_s] * len(output.token_ids)
        self._unfinished[key] -= len(output.token_ids)
        if output.finish_reason is None:
            return False
        if self._unfinished.pop(key):
            raise RuntimeError(f"request {key} ended early")
        del self._times[key]
        heapq.heappush(self._ends_s, self._time.now_s)
        return True

    def remember(self, key: int, request: EngineRequest) -> None:
        """Put the prompt of an earlier request into the prefix cache; takes no time."""
        self._runner.is_free = True
        self._core.inbox.put(AddRequest(key, request))
        while not self._core.step():
            pass
        self._core.inbox.put(AbortRequest(key))
        self._core.step()
        self._runner.is_free = False


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a simulation. `busy`: the share of time in steps. `hit_rate`: of prompt tokens, from the cache."""

    times: tuple[RequestTimes, ...]
    duration_s: float
    busy: float
    hit_rate: float
    num_preemptions: int


def simulate(
    replica: Replica,
    costs: StepCosts,
    workload: Workload,
    coming: Sequence[Arrival],
    routing: tuple[Router, int],
    weights: Weights | None = None,
) -> Run:
    """Simulate replicas until all arrivals are answered. `routing`: router and number of replicas. Raises: CostsError.

    `weights`: see `workload.arrivals`. With prefixes, earlier requests have filled the prefix caches.
    """
    router, num_replicas = routing
    replicas = [SimulatedReplica(replica, costs) for _ in range(num_replicas)]
    if workload.prefix_tokens and replica.limits.prefix_cache != "off":
        _fill_caches(replicas, replica, workload, router, weights)
    earlier = [(replica.stats.num_prefix_queries, replica.stats.num_prefix_hits) for replica in replicas]
    times = [_send(replicas, router, workload, arrival) for arrival in coming]
    for finished in replicas:
        finished.run_until(float("inf"))
    end_s = max(request.token_s[-1] for request in times)
    queries = sum(replica.stats.num_prefix_queries for replica in replicas) - sum(before for before, _ in earlier)
    hits = sum(replica.stats.num_prefix_hits for replica in replicas) - sum(before for _, before in earlier)
    return Run(
        times=tuple(times),
        duration_s=end_s,
        busy=sum(replica.busy_s for replica in replicas) / end_s / num_replicas,
        hit_rate=hits / queries if queries else 0.0,
        num_preemptions=sum(replica.stats.num_preemptions for replica in replicas),
    )


def _send(replicas: Sequence[SimulatedReplica], router: Router, workload: Workload, arrival: Arrival) -> RequestTimes:
    for replica in replicas:
        replica.run_until(arrival.time_s)
    chosen = replicas[router.choose(arrival.prefix, [replica.num_outstanding(arrival.time_s) for replica in replicas])]
    return chosen.add(arrival.number, request_of(workload, arrival.number, arrival.prefix), arrival.time_s)


def _fill_caches(
    replicas: Sequence[SimulatedReplica], replica: Replica, workload: Workload, router: Router, weights: Weights | None
) -> None:
    """Route earlier requests until they fill the caches, up to a bound."""
    room = min(pool.num_blocks for pool in replica.pools) * replica.block_size
    each = room // max(workload.prompt_tokens - workload.prefix_tokens, replica.block_size) + 1
    count = min(each * len(replicas), _MOST_EARLIER_REQUESTS * len(replicas))
    recent: deque[int] = deque(maxlen=4 * len(replicas))  # replicas with recent requests count as loaded
    for number, prefix in enumerate(draw_prefixes(workload, count, weights, stream=5), start=1):
        chosen = router.choose(prefix, [recent.count(index) for index in range(len(replicas))])
        recent.append(chosen)
        replicas[chosen].remember(-number, request_of(workload, workload.num_requests + number, prefix))


def latencies(times: Sequence[RequestTimes]) -> tuple[list[float], list[float]]:
    """These requests' seconds to the first token, and between tokens."""
    gaps = [later - earlier for request in times for earlier, later in pairwise(request.token_s)]
    return [request.token_s[0] - request.arrival_s for request in times], gaps
