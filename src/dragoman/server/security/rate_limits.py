"""Limits the requests and tokens of each caller, by buckets that fill steadily and hold a minute's worth.

Tokens are taken when a call has ended, below zero if necessary, so several calls at once may exceed the rate for a
while. Source: OpenAI API reference, headers of rate limits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from dragoman.errors import RateLimited
from dragoman.server.security.callers import Caller, Limits

PERIOD_S = 60.0


class Bucket:
    """The bucket of one limit, full at first. `size`: the amount added in a minute."""

    def __init__(self, size: int, now_s: float) -> None:
        self.size = size
        self._level = float(size)
        self._at_s = now_s

    def left(self, now_s: float) -> float:
        """The amount that may be taken now; negative = a debt."""
        self._level = min(self.size, self._level + max(0.0, now_s - self._at_s) * self.size / PERIOD_S)
        self._at_s = now_s
        return self._level

    def resize(self, size: int, now_s: float) -> None:
        """Change the size, because the limit has changed or the keys of one name have two limits. Adds nothing."""
        self._level = min(self.left(now_s), float(size))
        self.size = size

    def take(self, amount: float) -> None:
        self._level -= amount

    def until_s(self, level: float, now_s: float) -> float:
        return max(0.0, level - self.left(now_s)) * PERIOD_S / self.size


class RateLimits:
    """The buckets of all callers with limits. `clock`: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], Bucket] = {}

    def admit(self, caller: Caller) -> Mapping[str, str]:
        """Take one request, and return the header fields that tell what is left. Raises: RateLimited."""
        now_s = self._clock()
        buckets = self._of(caller, now_s)
        for name, bucket in buckets.items():
            # of tokens only a debt counts: how many a call will need, nobody knows yet
            wait_s = bucket.until_s(1.0 if name == "requests" else 0.0, now_s)
            if wait_s > 0:
                raise RateLimited(
                    f"Rate limit reached for {caller.name}: {bucket.size} {name} per minute; "
                    f"try again in {math.ceil(wait_s)} s",
                    retry_after_s=math.ceil(wait_s),
                )
        if "requests" in buckets:
            buckets["requests"].take(1)
        return self.headers(caller)

    def spend(self, caller: str, num_tokens: int) -> None:
        if self._buckets and (bucket := self._buckets.get((caller, "tokens"))) is not None:
            bucket.left(self._clock())
            bucket.take(num_tokens)

    def headers(self, caller: Caller) -> Mapping[str, str]:
        now_s = self._clock()
        told = {}
        for name, bucket in self._of(caller, now_s).items():
            told[f"x-ratelimit-limit-{name}"] = str(bucket.size)
            told[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(bucket.left(now_s))))
            told[f"x-ratelimit-reset-{name}"] = f"{bucket.until_s(bucket.size, now_s):.3f}s"
        return told

    def _of(self, caller: Caller, now_s: float) -> dict[str, Bucket]:
        found = {}
        for name, size in _sizes(caller.limits):
            bucket = self._buckets.get((caller.name, name))
            if bucket is None:
                bucket = self._buckets[caller.name, name] = Bucket(size, now_s)
            elif bucket.size != size:
                bucket.resize(size, now_s)
            found[name] = bucket
        return found


def _sizes(limits: Limits) -> list[tuple[str, int]]:
    both = (("requests", limits.requests_per_minute), ("tokens", limits.tokens_per_minute))
    return [(name, size) for name, size in both if size is not None]
