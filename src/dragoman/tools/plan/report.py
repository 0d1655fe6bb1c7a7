"""A plan as a table for people, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from dragoman.tools.plan.replica import Replica
from dragoman.tools.plan.sizing import HIGHEST_UTILISATION, Bounds, Load, Plan

_GIB = 1024**3
_WIDTH = 26


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
    asked, load = plan.workload, plan.load
    yield f"{name}: {asked.rate:g} requests/s of {asked.prompt_tokens} prompt and {asked.output_tokens} completion tokens"
    if asked.prefix_tokens:
        yield f"  {asked.num_prefixes} beginnings of {asked.prefix_tokens} tokens, router: {plan.router}"
    yield ""
    yield "One replica"
    yield _row(
        "memory", f"{_gib(_memory(replica))}: weights {_gib(replica.needs.weights)}, cache {_gib(replica.cache_bytes)}"
    )
    yield _row("cache of a token", f"{replica.token_bytes:,.0f} bytes{_windows(replica)}")
    yield _row(
        "sequences that fit",
        f"{plan.num_sequences} of {asked.total_tokens} tokens (at most {replica.limits.max_num_seqs})",
    )
    yield _row("saturated", f"{_number(plan.requests_per_s)} requests/s, {_number(plan.tokens_per_s)} tokens/s")
    first, gap = _seconds(plan.alone_ttft_s), _seconds(plan.alone_itl_s)
    yield _row("a request alone", f"first token after {first}, the next after {gap} each")
    size = replica.sequence_bytes(asked.prompt_tokens)
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
    if asked.prefix_tokens:
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
