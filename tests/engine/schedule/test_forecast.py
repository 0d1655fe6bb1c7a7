"""Who is admitted is expected to be able to stay; what is expected follows the answers that were seen."""

from __future__ import annotations

import pytest

from dragoman.engine.rolling.schedule.capacity import Forecast, Growing

BLOCK_SIZE = 4


def growing(num_prompt: int, num_generated: int, max_generated: int, **more: int) -> Growing:
    """A sequence whose table is as long as its tokens need."""
    num_tokens = num_prompt + num_generated
    return Growing(num_tokens, num_generated, max_generated, -(-num_tokens // BLOCK_SIZE), **{"num_released": 0} | more)


def spare_needed(forecast: Forecast, newcomer: Growing, *running: Growing) -> int:
    """The fewest free blocks with which the newcomer fits."""
    return next(spare for spare in range(-99, 99) if forecast.fits(newcomer, running, spare))


def test_alone_a_sequence_needs_its_growth_the_last_token_having_no_slot() -> None:
    forecast = Forecast(BLOCK_SIZE, 100)
    assert spare_needed(forecast, growing(8, 0, 5)) == 1
    assert spare_needed(forecast, growing(8, 0, 6)) == 2
    assert spare_needed(forecast, growing(8, 0, 1)) == 0


def test_those_who_run_grow_beside_it() -> None:
    forecast = Forecast(BLOCK_SIZE, 100)
    assert spare_needed(forecast, growing(8, 0, 5), growing(8, 0, 5), growing(4, 0, 9)) == 3


def test_growth_after_its_end_is_not_its_fault() -> None:
    forecast = Forecast(BLOCK_SIZE, 100)
    assert spare_needed(forecast, growing(8, 0, 2), growing(8, 0, 99)) == 2


def test_what_a_finished_sequence_releases_counts_from_then_on() -> None:
    forecast = Forecast(BLOCK_SIZE, 100)
    soon_over = growing(8, 0, 2, num_released=2)
    assert spare_needed(forecast, growing(8, 0, 2), soon_over) == 2, "both are there to the end"
    assert spare_needed(forecast, growing(8, 0, 13), soon_over) == 2, (
        "then one is there, and has two blocks more to use"
    )
    assert spare_needed(forecast, growing(8, 0, 21), soon_over) == 3


def test_copies_that_start_together_grow_apart() -> None:
    forecast = Forecast(BLOCK_SIZE, 100)
    assert spare_needed(forecast, growing(6, 0, 7, num_copies=3)) == 3 * 1 + 2


def test_with_a_window_nobody_needs_more_blocks_than_it_touches() -> None:
    forecast = Forecast(BLOCK_SIZE, 100)

    def fewest(newcomer: Growing, *running: Growing) -> int:
        return next(spare for spare in range(-99, 99) if forecast.fits(newcomer, running, spare, most=3))

    assert fewest(growing(8, 0, 90)) == 1
    assert fewest(growing(12, 0, 90), growing(4, 0, 90)) == 2
    assert fewest(growing(20, 0, 90)) == -2, "what the prompt takes more than a window is given back"
    assert fewest(growing(8, 0, 90, num_copies=3)) == 3 * 3 - 2 + 2, "copies have windows of their own in the end"


def test_before_any_answer_is_known_a_guess_counts_up_to_the_limit() -> None:
    assert spare_needed(Forecast(BLOCK_SIZE, 9), growing(8, 0, 1000)) == 2
    assert spare_needed(Forecast(BLOCK_SIZE, 9), growing(8, 0, 5)) == 1


@pytest.mark.parametrize(
    ("num_generated", "num_more_blocks"),
    [(0, 2), (4, 4), (19, 0), (20, 5)],
    ids=["mean of all", "mean of those that became older", "nearly done", "older than all: twice as old"],
)
def test_an_answer_becomes_as_long_as_those_that_were_seen(num_generated: int, num_more_blocks: int) -> None:
    forecast = Forecast(BLOCK_SIZE, 500)
    for length in [4] * 12 + [20] * 4:  # the mean is 8
        forecast.note(length)
    newcomer = growing(8, num_generated, 1000)
    assert spare_needed(forecast, newcomer) == num_more_blocks


def test_only_the_newest_answers_count() -> None:
    forecast = Forecast(BLOCK_SIZE, 500)
    for length in [1000] * 600 + [4] * 512:
        forecast.note(length)
    assert spare_needed(forecast, growing(8, 0, 5000)) == 1
