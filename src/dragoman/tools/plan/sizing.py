"""Computes the load of replicas, and the number needed for a rate within bounds on latency; the plan's report.

Of more than `MOST_TOGETHER` replicas, one is simulated with a random share of the requests: a router does better. Called
by `dragoman plan`, on the main thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import msgspec

from dragoman.tools.percentiles import percentile
from dragoman.tools.plan.costs import StepCosts
from dragoman.tools.plan.router import LeastOutstanding, RouterKind, router_of, share_of_first
from dragoman.tools.plan.simulate import Replica, Run, SimulatedReplica, latencies, simulate
from dragoman.tools.plan.workload import Arrival, Workload, arrivals, draw_prefixes

MOST_TOGETHER = 4
MOST_REPLICAS = 1_000_000
HIGHEST_UTILISATION = 0.9
"""Of what a replica carries when it is saturated: nearer to it, waiting grows without end."""

_SKIPPED = 0.2  # of the requests, the first ones, which meet emptier replicas
_WAVES = 3  # waves of sequences that are counted in a saturated replica
_GIB = 1024**3
_WIDTH = 26


class PlanError(ValueError):
    """A plan is impossible. `option`: the wrong option."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(problem)
        self.option = option


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most seconds of 99 of 100 first tokens, and of 99 of 100 gaps between tokens; None = no bound."""

    ttft_s: float | None = None
    itl_s: float | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """The performance of replicas. Seconds; percentiles over requests, and over gaps between tokens.

    `utilisation`: of a replica, 1 = saturated. `busy`: the share of time in steps. `num_together`: simulated replicas.
    `tokens_per_s`: completion tokens of all replicas. `hit_rate`: the share of prompt tokens from the prefix cache.
    """

    num_replicas: int
    num_together: int
    utilisation: float
    busy: float
    requests_per_s: float
    tokens_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    itl_p50_s: float
    itl_p99_s: float
    hit_rate: float
    num_preemptions: int
    is_within: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan. `requests_per_s`, `tokens_per_s`: of one saturated replica. `alone_*`: of a request without company."""

    workload: Workload
    bounds: Bounds
    router: RouterKind
    num_sequences: int
    requests_per_s: float
    tokens_per_s: float
    alone_ttft_s: float
    alone_itl_s: float
    load: Load


class Planner:
    """Sizes one kind of replica for one workload, whose `num_requests` are those of one simulated replica."""

    def __init__(self, replica: Replica, costs: StepCosts, workload: Workload, router: RouterKind) -> None:
        """Raises: PlanError if a request does not fit; CostsError if the costs are another model's."""
        _check_fit(replica, workload)
        self._replica, self._costs, self._workload, self._kind = replica, costs, workload, router
        SimulatedReplica(replica, costs)  # checks the costs
        self.carries: Callable[[int], float] = cache(self._carries)

    def plan(self, bounds: Bounds, num_replicas: int | None = None) -> Plan:
        """The plan; `num_replicas` None = as few as keep the bounds. Raises: PlanError if none do."""
        alone = self._alone()
        load = self.load(num_replicas, bounds) if num_replicas else self._search(bounds, alone)
        rate = self.carries(self._alike(load.num_replicas))
        return Plan(
            workload=self._workload,
            bounds=bounds,
            router=self._kind,
            num_sequences=self._replica.num_sequences(self._workload.total_tokens),
            requests_per_s=rate,
            tokens_per_s=rate * self._workload.output_tokens,
            alone_ttft_s=alone.ttft_s or 0.0,
            alone_itl_s=alone.itl_s or 0.0,
            load=load,
        )

    def load(self, num_replicas: int, bounds: Bounds) -> Load:
        num_together = num_replicas if num_replicas <= MOST_TOGETHER else 1
        part = replace(
            self._workload,
            rate=self._workload.rate * num_together / num_replicas,
            num_requests=self._workload.num_requests * num_together,
        )
        weights = share_of_first(self._workload, num_replicas, self._kind) if num_together < num_replicas else None
        router = router_of(self._kind) if num_together > 1 else LeastOutstanding()
        coming = _at_rate(arrivals(part, weights), part.rate)
        run = simulate(self._replica, self._costs, part, coming, (router, num_together), weights)
        return self._load_of(run, num_replicas, num_together, bounds)

    def _load_of(self, run: Run, num_replicas: int, num_together: int, bounds: Bounds) -> Load:
        num_skipped = int(len(run.times) * _SKIPPED)
        first, gaps = latencies(run.times[num_skipped:])
        ends = sorted(times.token_s[-1] for times in run.times)[num_skipped:]
        utilisation = self._workload.rate / num_replicas / self.carries(self._alike(num_replicas))
        ttft_p99, itl_p99 = percentile(first, 0.99), percentile(gaps, 0.99)
        is_within = (
            utilisation <= HIGHEST_UTILISATION and _holds(ttft_p99, bounds.ttft_s) and _holds(itl_p99, bounds.itl_s)
        )
        answered = (len(ends) - 1) / (ends[-1] - ends[0]) * num_replicas / num_together
        return Load(
            num_replicas=num_replicas,
            num_together=num_together,
            utilisation=utilisation,
            busy=run.busy,
            requests_per_s=answered,
            tokens_per_s=answered * self._workload.output_tokens,
            ttft_p50_s=percentile(first, 0.5),
            ttft_p99_s=ttft_p99,
            itl_p50_s=percentile(gaps, 0.5),
            itl_p99_s=itl_p99,
            hit_rate=run.hit_rate,
            num_preemptions=run.num_preemptions,
            is_within=is_within,
        )

    def _search(self, bounds: Bounds, alone: Bounds) -> Load:
        """The fewest replicas that keep the bounds, by doubling and halving."""
        for option, bound, least in (("ttft", bounds.ttft_s, alone.ttft_s), ("itl", bounds.itl_s, alone.itl_s)):
            if bound is not None and least is not None and least > bound:
                raise PlanError(option, f"cannot be met: a request alone takes {least:.3g} s")
        too_few = max(math.ceil(self._workload.rate / self.carries(1) / HIGHEST_UTILISATION) - 1, 0)
        if self._kind == "prefix":  # more replicas hold more prefixes, so each carries more
            too_few = 0
        enough = self.load(too_few + 1, bounds)
        while not enough.is_within:
            too_few = enough.num_replicas
            if 2 * too_few > MOST_REPLICAS:
                raise PlanError("rate", f"cannot be served within the bounds by {too_few} replicas")
            enough = self.load(2 * too_few, bounds)
        while enough.num_replicas - too_few > 1:
            middle = self.load((enough.num_replicas + too_few) // 2, bounds)
            if middle.is_within:
                enough = middle
            else:
                too_few = middle.num_replicas
        return enough

    def _alike(self, num_replicas: int) -> int:
        """The smallest number of replicas whose load per replica is that of `num_replicas`."""
        return num_replicas if self._kind == "prefix" and self._workload.prefix_tokens else 1

    def _alone(self) -> Bounds:
        """A lone request's seconds to the first token, and its longest gap between tokens, without a prefix."""
        single = replace(self._workload, num_requests=1, prefix_tokens=0)
        run = simulate(self._replica, self._costs, single, [Arrival(0, 0.0)], (LeastOutstanding(), 1))
        first, gaps = latencies(run.times)
        return Bounds(first[0], max(gaps, default=0.0))

    def _carries(self, num_replicas: int) -> float:
        """Requests a second of one of `num_replicas` saturated replicas, over whole waves of sequences."""
        weights = share_of_first(self._workload, num_replicas, self._kind)
        width = self._replica.num_sequences(self._workload.total_tokens)
        count = (1 + _WAVES) * width
        saturated = replace(self._workload, num_requests=count + width)
        prefixes = draw_prefixes(saturated, count + width, weights, stream=2)
        coming = [Arrival(number, 0.0, prefix) for number, prefix in enumerate(prefixes)]
        run = simulate(self._replica, self._costs, saturated, coming, (LeastOutstanding(), 1), weights)
        ends = sorted(times.token_s[-1] for times in run.times)
        return (count - width) / (ends[count - 1] - ends[width - 1])


def _check_fit(replica: Replica, workload: Workload) -> None:
    if workload.total_tokens > replica.max_model_len:
        problem = f"{workload.prompt_tokens} prompt and {workload.output_tokens} completion tokens exceed the context"
        raise PlanError("prompt", f"{problem} of {replica.max_model_len} tokens")
    if not replica.num_sequences(workload.total_tokens):
        raise PlanError("prompt", f"a sequence of {workload.total_tokens} tokens does not fit the key/value cache")


def _at_rate(coming: Sequence[Arrival], rate: float) -> list[Arrival]:
    scale = len(coming) / rate / coming[-1].time_s
    return [replace(arrival, time_s=arrival.time_s * scale) for arrival in coming]


def _holds(value_s: float, bound_s: float | None) -> bool:
    return bound_s is None or value_s <= bound_s


# --- report -----------------------------------------------------------------------------------------------------------


def plan_json(plan: Plan, replica: Replica, deviation: float, disk_bytes_per_s: float) -> str:
    """The plan as a JSON object; seconds, bytes and tokens. `deviation`: of the costs."""
    values: dict[str, Any] = msgspec.to_builtins(plan)
    values["memory"] = {
        "weights_bytes": replica.needs.weights,
        "cache_bytes": replica.cache_bytes,
        "kv_bytes_per_token": replica.token_bytes,
        "sequence_bytes": replica.sequence_bytes(plan.workload.total_tokens),
        "replica_bytes": _memory(replica),
        "total_bytes": _memory(replica) * plan.load.num_replicas,
    }
    prompt_bytes = replica.sequence_bytes(plan.workload.prompt_tokens)
    values["after_a_restart"] = {
        "computed_s": plan.alone_ttft_s,
        "kept_bytes": prompt_bytes,
        "read_s": prompt_bytes / disk_bytes_per_s,
    }
    values["costs_deviation"] = deviation
    return msgspec.json.format(msgspec.json.encode(values)).decode() + "\n"


def plan_text(name: str, plan: Plan, replica: Replica, deviation: float, disk_bytes_per_s: float) -> str:
    return "\n".join(_lines(name, plan, replica, deviation, disk_bytes_per_s)) + "\n"


def _lines(name: str, plan: Plan, replica: Replica, deviation: float, disk_bytes_per_s: float) -> Iterator[str]:
    workload, load = plan.workload, plan.load
    tokens = f"{workload.prompt_tokens} prompt and {workload.output_tokens} completion tokens"
    yield f"{name}: {workload.rate:g} requests/s of {tokens}"
    if workload.prefix_tokens:
        yield f"  {workload.num_prefixes} beginnings of {workload.prefix_tokens} tokens, router: {plan.router}"
    yield ""
    yield "One replica"
    yield _row(
        "memory", f"{_gib(_memory(replica))}: weights {_gib(replica.needs.weights)}, cache {_gib(replica.cache_bytes)}"
    )
    yield _row("cache of a token", f"{replica.token_bytes:,.0f} bytes{_windows(replica)}")
    yield _row(
        "sequences that fit",
        f"{plan.num_sequences} of {workload.total_tokens} tokens (at most {replica.limits.max_num_seqs})",
    )
    yield _row("saturated", f"{_number(plan.requests_per_s)} requests/s, {_number(plan.tokens_per_s)} tokens/s")
    first, gap = _seconds(plan.alone_ttft_s), _seconds(plan.alone_itl_s)
    yield _row("a request alone", f"first token after {first}, the next after {gap} each")
    size = replica.sequence_bytes(workload.prompt_tokens)
    read = f"{_seconds(size / disk_bytes_per_s)} from disk, {size / 1e6:,.1f} MB"
    yield _row("a prompt after a restart", f"{first} computed, or {read} (--prefix-store-gb)")
    if deviation:  # the costs are measured
        yield _row("step costs", f"measured steps deviate by {deviation:.0%} (median)")
    yield ""
    yield _title(load, plan.bounds)
    yield _row("utilisation", f"{load.utilisation:.0%} of saturated, steps run {load.busy:.0%} of the time")
    yield _row(
        "throughput", f"{_number(load.requests_per_s)} requests/s, {_number(load.tokens_per_s)} tokens/s together"
    )
    yield _row("time to first token", _percentiles(load.ttft_p50_s, load.ttft_p99_s, plan.bounds.ttft_s))
    yield _row("time between tokens", _percentiles(load.itl_p50_s, load.itl_p99_s, plan.bounds.itl_s))
    if workload.prefix_tokens:
        yield _row("from the prefix cache", f"{load.hit_rate:.0%} of prompt tokens")
    if load.num_preemptions:
        yield _row("preemptions", str(load.num_preemptions))
    yield _row("memory", _gib(_memory(replica) * load.num_replicas))
    yield _row("simulated", _simulated(load))


def _title(load: Load, bounds: Bounds) -> str:
    replicas = f"{load.num_replicas} replica{'' if load.num_replicas == 1 else 's'}"
    if not load.is_within:
        reason = "the bounds are" if _has_bounds(bounds) else "the rate is"
        return f"{replicas}: too few, {reason} not kept at {HIGHEST_UTILISATION:.0%} utilisation or less"
    return f"{replicas}{': within the bounds' if _has_bounds(bounds) else ''}"


def _has_bounds(bounds: Bounds) -> bool:
    return bounds.ttft_s is not None or bounds.itl_s is not None


def _simulated(load: Load) -> str:
    if load.num_together == load.num_replicas:
        return "all of them, with the router"
    return "one of them, with its share of the requests"


def _windows(replica: Replica) -> str:
    kinds = zip(replica.pools, replica.block_bytes, strict=True)
    sizes = [size * -(-pool.window // replica.block_size) for pool, size in kinds if pool.window]
    return f", and {sum(sizes):,} of a sequence in layers with a window or a state" if sizes else ""


def _memory(replica: Replica) -> int:
    return replica.needs.weights + replica.cache_bytes


def _row(title: str, text: str) -> str:
    return f"  {title:<{_WIDTH}}{text}"


def _percentiles(middle_s: float, high_s: float, bound_s: float | None) -> str:
    bound = "" if bound_s is None else f" (at most {_seconds(bound_s)})"
    return f"p50 {_seconds(middle_s)}, p99 {_seconds(high_s)}{bound}"


def _seconds(value_s: float) -> str:
    return f"{value_s:.2f} s" if value_s >= 1 else f"{1000 * value_s:.3g} ms"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f} GiB"
