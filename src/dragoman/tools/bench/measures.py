"""Computes a point's rates, latencies and failures from its samples. Units: seconds, tokens, shares from 0 to 1."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from dragoman.tools.bench.answer import Sample
from dragoman.tools.percentiles import percentile

CountedBy = Literal["usage", "pieces", "both", "nobody"]
SLO_NAMES = ("ttft", "tpot", "itl", "e2e")


class Spread(msgspec.Struct, frozen=True):
    """The spread of values; percentiles by nearest rank."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Failures(msgspec.Struct, frozen=True):
    """Requests that failed in one way; `example`: the first one's message."""

    kind: str
    count: int
    example: str


class Measures(msgspec.Struct, frozen=True):
    """The measures of one point. None = unknown. `goodput`: share of requests answered within bounds.

    `unfinished`: open requests at an interruption. `time_to_first_token_s` and `latency_s` count from a request's due
    time. `time_per_token_s`: after the first piece. `gap_s`: between pieces.
    """

    duration_s: float
    answered: int
    failed: int
    unfinished: int
    failures: list[Failures]
    requests_per_s: float
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    prompt_tokens: float | None
    output_tokens: float | None
    pieces: float | None
    counted_by: CountedBy
    time_to_first_token_s: Spread | None
    time_per_token_s: Spread | None
    gap_s: Spread | None
    latency_s: Spread | None
    goodput: float | None = None
    good_requests_per_s: float | None = None


def spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    p50, p90, p99 = (percentile(values, share) for share in (0.5, 0.9, 0.99))
    return Spread(math.fsum(values) / len(values), p50, p90, p99, max(values))


def tokens_of(sample: Sample, *, has_tokens: bool = True) -> int:
    """Output tokens by the server's count, else the pieces; 0 if pieces are not tokens."""
    if sample.output_tokens is not None:
        return sample.output_tokens
    return len(sample.piece_times_s) if has_tokens else 0


def time_per_token(sample: Sample) -> float | None:
    """Seconds per token after the first piece; None if there is only one."""
    span_s = sample.piece_times_s[-1] - sample.piece_times_s[0]
    tokens = tokens_of(sample)
    return span_s / (tokens - 1) if tokens > 1 and len(sample.piece_times_s) > 1 else None


def gaps(sample: Sample) -> list[float]:
    times = sample.piece_times_s
    return [later - earlier for earlier, later in pairwise(times)]


def is_within(sample: Sample, bounds: Mapping[str, float]) -> bool:
    """True if the request was answered within all bounds, in seconds: `ttft`, `tpot` and `itl` (time per token), `e2e`."""
    if sample.error:
        return False
    per_token = time_per_token(sample) or 0.0
    seen = {"ttft": sample.first_s, "tpot": per_token, "itl": per_token, "e2e": sample.total_s}
    return all(seen[name] <= bound for name, bound in bounds.items())


def measures(
    samples: Sequence[Sample],
    duration_s: float,
    *,
    unfinished: int = 0,
    is_streamed: bool = True,
    bounds: Mapping[str, float] | None = None,
) -> Measures:
    """The measures of one point's samples. `is_streamed` False = answers come whole, and pieces are not tokens."""
    good = [sample for sample in samples if not sample.error]
    per_token = [time for sample in good if (time := time_per_token(sample)) is not None]
    within = sum(is_within(sample, bounds) for sample in samples) if bounds else None
    by = counted_by(good, is_streamed=is_streamed)
    output = None if by == "nobody" else sum(tokens_of(sample, has_tokens=is_streamed) for sample in good)
    prompt = _prompt_tokens(good)
    return Measures(
        duration_s=duration_s,
        answered=len(good),
        failed=len(samples) - len(good),
        unfinished=unfinished,
        failures=failures(samples),
        requests_per_s=_rate(len(good), duration_s),
        output_tokens_per_s=None if output is None else _rate(output, duration_s),
        total_tokens_per_s=None if output is None or prompt is None else _rate(output + prompt, duration_s),
        prompt_tokens=None if prompt is None else prompt / len(good),
        output_tokens=None if output is None else output / len(good),
        pieces=sum(len(sample.piece_times_s) for sample in good) / len(good) if good and is_streamed else None,
        counted_by=by,
        time_to_first_token_s=spread([sample.first_s for sample in good]) if is_streamed else None,
        time_per_token_s=spread(per_token) if is_streamed else None,
        gap_s=spread([gap for sample in good for gap in gaps(sample)]) if is_streamed else None,
        latency_s=spread([sample.total_s for sample in good]),
        goodput=None if within is None or not samples else within / len(samples),
        good_requests_per_s=None if within is None else _rate(within, duration_s),
    )


def failures(samples: Sequence[Sample]) -> list[Failures]:
    counts = Counter(sample.error for sample in samples if sample.error)
    first = {sample.error: sample.message for sample in reversed(samples)}
    return [Failures(kind, count, first[kind]) for kind, count in counts.most_common()]


def counted_by(good: Sequence[Sample], *, is_streamed: bool) -> CountedBy:
    num_counted = sum(sample.output_tokens is not None for sample in good)
    if good and num_counted == len(good):
        return "usage"
    if not num_counted and (not is_streamed or all(len(sample.piece_times_s) < 2 for sample in good)):
        return "nobody"  # complete answers
    return "both" if num_counted else "pieces"


def _prompt_tokens(good: Sequence[Sample]) -> int | None:
    counts = [sample.prompt_tokens for sample in good]
    return sum(count for count in counts if count is not None) if good and None not in counts else None


def _rate(count: float, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0
