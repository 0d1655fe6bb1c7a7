"""When a refused client may come again: what work costs, how much is left, and what is learned from calls that end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import EngineFailed
from dragoman.server.admission import LEAST_RETRY_S, MOST_RETRY_S, Costs, Forecast
from dragoman.server.observation.record import CallRecord, RequestRecord, SequenceRecord

PROMPT_S, TOKEN_S = 0.001, 0.05  # of a made-up machine that computes one call after the other


class Clock:
    """Stands still until a test moves it."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def call_of(num_prompt: int, max_tokens: int = 1000) -> CallRecord:
    """A call with one prompt that has been tokenised and waits."""
    request = RequestRecord("r", num_queued_tokens=num_prompt, max_tokens=max_tokens, sequences=[SequenceRecord()])
    return CallRecord("c", "openai", "/", requests=[request])


def serve(clock: Clock, forecast: Forecast, num_prompt: int, num_generated: int) -> None:
    """A call comes, is computed, and leaves."""
    call = call_of(num_prompt)
    (request,) = call.requests
    forecast.enter(call)
    clock.now_s += PROMPT_S * num_prompt
    request.num_queued_tokens, request.num_prompt_tokens = 0, num_prompt
    for _ in range(num_generated):
        clock.now_s += TOKEN_S
        request.sequences[0].num_tokens += 1
    forecast.leave(call)


# --- costs ------------------------------------------------------------------------------------------------------------


def test_both_costs_are_told_apart_where_the_mixture_changes() -> None:
    costs = Costs()
    for prompt, generated in ((1000, 10), (10, 100), (500, 50), (2000, 5)):
        costs.observe(prompt, generated, PROMPT_S * prompt + TOKEN_S * generated)
    assert costs.seconds(1000, 0) == pytest.approx(1000 * PROMPT_S)
    assert costs.seconds(0, 100) == pytest.approx(100 * TOKEN_S)


def test_where_the_mixture_is_always_the_same_its_cost_is_known() -> None:
    costs = Costs()
    for size in (1, 3, 2):
        costs.observe(100 * size, 10 * size, 4.0 * size)
    assert costs.seconds(200, 20) == pytest.approx(8.0)


def test_what_was_measured_last_counts_most() -> None:
    costs = Costs()
    for _ in range(100):
        costs.observe(1000, 0, 1.0)
    for _ in range(30):
        costs.observe(1000, 0, 5.0)
    assert costs.seconds(1000, 0) == pytest.approx(5.0, rel=0.1)


def test_nothing_is_known_before_anything_was_measured() -> None:
    assert Costs().seconds(10, 10) is None


COUNTS = st.integers(0, 10_000)


@given(st.lists(st.tuples(COUNTS, COUNTS, st.floats(0.001, 100)), min_size=1, max_size=20), COUNTS, COUNTS)
def test_no_forecast_is_negative(measured: list[tuple[int, int, float]], prompt: int, generated: int) -> None:
    costs = Costs()
    for measurement in measured:
        costs.observe(*measurement)
    seconds = costs.seconds(prompt, generated)
    assert seconds is None or seconds >= 0


# --- the forecast -----------------------------------------------------------------------------------------------------


def test_the_forecast_is_what_is_left_by_what_it_costs() -> None:
    clock = Clock()
    forecast = Forecast(clock)
    for num_prompt in (2000, 100, 500, 1000):
        serve(clock, forecast, num_prompt, 20)
    forecast.enter(call_of(3000))
    running = call_of(0)
    running.requests[0].sequences[0].num_tokens = 8
    forecast.enter(running)
    assert forecast.num_queued_tokens == 3000
    assert forecast.seconds() == pytest.approx(3000 * PROMPT_S + (20 + 12) * TOKEN_S, rel=0.02)
    assert forecast.retry_after_s() == 5


def test_idle_time_costs_nothing() -> None:
    clock = Clock()
    busy, idle = Forecast(clock), Forecast(clock)
    for forecast, pause_s in ((busy, 0.0), (idle, 100.0)):
        for num_prompt in (2000, 100, 500, 1000):
            serve(clock, forecast, num_prompt, 20)
            clock.now_s += pause_s
        forecast.enter(call_of(1000))
    assert idle.seconds() == pytest.approx(busy.seconds())


def test_calls_that_are_short_are_measured_as_well() -> None:
    clock = Clock()
    forecast = Forecast(clock)
    for _ in range(200):
        serve(clock, forecast, 10, 1)
    forecast.enter(call_of(0, max_tokens=100))
    assert forecast.seconds() == pytest.approx(10 * PROMPT_S / 11 + TOKEN_S / 11, rel=0.1)  # alike, so not told apart


def test_nobody_is_expected_to_generate_more_than_it_may_and_the_oldest_become_twice_as_old() -> None:
    clock = Clock()
    forecast = Forecast(clock)
    for num_prompt in (2000, 100, 500, 1000):
        serve(clock, forecast, num_prompt, 20)
    for max_tokens, num_done in ((5, 0), (1000, 50), (60, 50)):
        call = call_of(0, max_tokens)
        call.requests[0].sequences[0].num_tokens = num_done
        forecast.enter(call)
    assert forecast.seconds() == pytest.approx((5 + 50 + 10) * TOKEN_S, rel=0.02)


def test_calls_that_fail_say_nothing_of_lengths_but_what_they_took_counts() -> None:
    clock = Clock()
    forecast = Forecast(clock)
    serve(clock, forecast, 1000, 20)
    call = call_of(0)
    forecast.enter(call)
    clock.now_s += 1000 * TOKEN_S
    call.requests[0].sequences[0].num_tokens, call.error = 1000, EngineFailed("no")
    forecast.leave(call)
    forecast.enter(call_of(0))
    seconds = forecast.seconds()
    assert seconds == pytest.approx(20 * TOKEN_S, rel=0.1)


def test_a_call_with_several_prompts_is_the_sum_of_them() -> None:
    forecast = Forecast(Clock())
    call = call_of(30)
    call.requests.append(RequestRecord("s", num_queued_tokens=12))
    call.num_expected_tokens = 5  # of a third
    forecast.enter(call)
    assert forecast.num_queued_tokens == 47
    forecast.leave(call)
    assert forecast.num_queued_tokens == 0


def test_clients_are_never_told_less_than_a_second_nor_more_than_they_heed() -> None:
    clock = Clock()
    forecast = Forecast(clock)
    assert forecast.retry_after_s() == LEAST_RETRY_S
    serve(clock, forecast, 1000, 20)
    forecast.enter(call_of(10_000_000))
    clock.now_s += 10
    assert forecast.retry_after_s() == MOST_RETRY_S
