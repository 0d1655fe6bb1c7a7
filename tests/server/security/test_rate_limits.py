"""Buckets: what is left, when there is more, and that debts are paid."""

from __future__ import annotations

import pytest

from dragoman.errors import RateLimited
from dragoman.server.security.callers import ALL_SCOPES, Caller, Limits
from dragoman.server.security.gate import RateLimits


class Clock:
    """A clock that a test moves."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def caller(name: str = "a", requests: int | None = None, tokens: int | None = None) -> Caller:
    return Caller(name, ALL_SCOPES, Limits(requests, tokens))


def refusal(limits: RateLimits, who: Caller) -> int:
    """Seconds that the caller is told to wait."""
    with pytest.raises(RateLimited) as caught:
        limits.admit(who)
    assert who.name in caught.value.message
    return caught.value.retry_after_s


def test_as_many_requests_as_the_limit_at_once_then_one_at_a_time() -> None:
    clock, who = Clock(), caller(requests=6)
    limits = RateLimits(clock)
    for _ in range(6):
        limits.admit(who)
    assert refusal(limits, who) == 10
    clock.now_s += 9
    assert refusal(limits, who) == 1
    clock.now_s += 1
    limits.admit(who)
    assert refusal(limits, who) == 10


def test_waiting_longer_than_a_minute_saves_nothing_up() -> None:
    clock, who = Clock(), caller(requests=3)
    limits = RateLimits(clock)
    clock.now_s += 3600
    for _ in range(3):
        limits.admit(who)
    assert refusal(limits, who) == 20


def test_tokens_are_taken_when_a_call_has_ended_and_debts_are_waited_for() -> None:
    clock, who = Clock(), caller(tokens=60)
    limits = RateLimits(clock)
    limits.admit(who)
    limits.spend(who.name, 90)
    assert refusal(limits, who) == 30
    assert limits.headers(who) == {
        "x-ratelimit-limit-tokens": "60",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "90.000s",
    }
    clock.now_s += 31
    assert limits.admit(who)["x-ratelimit-remaining-tokens"] == "1"


def test_over_time_the_rate_holds_exactly() -> None:
    clock, who = Clock(), caller(tokens=600)
    limits = RateLimits(clock)
    taken = 0
    for _ in range(3600):
        clock.now_s += 1
        try:
            limits.admit(who)
        except RateLimited:
            continue
        limits.spend(who.name, 250)
        taken += 250
    assert 600 * 60 <= taken <= 600 * 61 + 250


def test_callers_do_not_take_from_each_other() -> None:
    limits = RateLimits(Clock())
    limits.admit(caller("a", requests=1))
    refusal(limits, caller("a", requests=1))
    limits.admit(caller("b", requests=1))


def test_a_refused_request_takes_nothing() -> None:
    clock, who = Clock(), caller(requests=1, tokens=60)
    limits = RateLimits(clock)
    limits.admit(who)
    for _ in range(5):
        refusal(limits, who)
    clock.now_s += 60
    limits.admit(who)


def test_a_limit_that_the_operator_raises_fills_up_with_time() -> None:
    clock = Clock()
    limits = RateLimits(clock)
    limits.admit(caller(requests=1))
    assert limits.headers(caller(requests=2))["x-ratelimit-remaining-requests"] == "0"
    clock.now_s += 60
    assert limits.headers(caller(requests=2))["x-ratelimit-remaining-requests"] == "2"


def test_two_keys_of_one_name_do_not_lift_each_others_limits() -> None:
    limits, keys = RateLimits(Clock()), (caller(requests=5), caller(requests=6))
    for number in range(5):
        limits.admit(keys[number % 2])
    for key in keys:
        refusal(limits, key)


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing() -> None:
    clock, who = Clock(), caller(requests=2)
    limits = RateLimits(clock)
    limits.admit(who)
    clock.now_s -= 500
    assert limits.headers(who)["x-ratelimit-remaining-requests"] == "1"


def test_who_has_no_limit_is_not_counted() -> None:
    limits = RateLimits(Clock())
    limits.spend("a", 1000)
    assert limits.admit(caller()) == {}
