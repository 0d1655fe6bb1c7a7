"""What is learned from durations of steps."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.engine.rolling.speculate.estimates import RowCosts, size_of


def measured(*steps: tuple[int, float], costs: RowCosts | None = None) -> RowCosts:
    """After steps of (rows, seconds)."""
    costs = costs or RowCosts()
    for num_rows, seconds in steps:
        costs.observe(num_rows, 0, seconds)
    return costs


def test_nothing_is_known_before_the_first_step() -> None:
    assert (RowCosts().seconds(1), RowCosts().most_rows, RowCosts().last_rows) == (0.0, 0, 0)


def test_rows_cost_what_the_line_through_the_fewest_and_the_most_says() -> None:
    costs = measured(*[(1, 1.0)] * 5, *[(3, 9.0)] * 5, *[(9, 5.0)] * 5)
    assert [costs.seconds(rows) for rows in (1, 3, 5, 9, 13)] == [1.0, 2.0, 3.0, 5.0, 7.0]


def test_a_row_of_which_nothing_is_known_is_cheap_so_that_it_is_tried_but_not_too_many_at_once() -> None:
    costs = measured(*[(4, 1.0)] * 3)
    assert 1.0 < costs.seconds(8) < 1.2
    assert costs.most_rows == 8


def test_the_first_step_of_a_size_does_not_count_and_slow_ones_hardly() -> None:
    costs = measured(*[(1, 1.0)] * 3, (4, 50.0), (4, 2.0), (4, 2.0), (4, 9.0), (4, 2.0))
    assert costs.seconds(4) == 2.0


def test_more_rows_never_take_less() -> None:
    costs = measured(*[(4, 2.0)] * 4, *[(8, 1.0)] * 4)
    assert costs.seconds(8) == 2.0


def test_a_size_that_was_slow_once_makes_no_other_dear() -> None:
    costs = measured(*[(1, 1.0)] * 8, *[(9, 2.0)] * 8, (24, 50.0), (24, 90.0))
    assert [costs.seconds(rows) for rows in (1, 5, 9)] == [1.0, 1.5, 2.0]


def test_what_was_measured_long_ago_is_stale_and_then_forgotten() -> None:
    costs = measured(*[(1, 1.0)] * 8, *[(8, 90.0)] * 8)
    assert not costs.is_stale(8)
    measured(*[(1, 1.0)] * 300, costs=costs)
    assert costs.is_stale(8)
    assert not costs.is_stale(1)
    assert not costs.is_stale(4), "nothing was measured that could be"
    assert costs.seconds(8) > 80
    measured(*[(1, 1.0)] * 2_000, costs=costs)
    assert costs.seconds(8) < 2


def test_sizes_are_measured_anew_where_every_step_has_other_rows_than_the_last() -> None:
    """As between steps with prompts: none would ever be fresh, and nothing guessed for long."""
    costs = measured(*[(1, 1.0)] * 8, *[(8, 2.0)] * 8)
    for _ in range(200):
        costs.note_prompts()
        costs.observe(1, 0, 0.5)
    assert not costs.is_stale(1)
    assert costs.seconds(1) == pytest.approx(0.5)


def test_a_change_that_took_long_once_is_forgotten() -> None:
    costs = measured(*[(1, 1.0)] * 8, *[(8, 2.0)] * 8, (1, 2.0))
    assert costs.change_s(8) == pytest.approx(1.0)
    measured(*[(1, 1.0)] * 500, costs=costs)
    assert costs.change_s(8) == pytest.approx(0.2)


def test_a_bad_moment_is_forgotten_if_it_was_not_measured_again() -> None:
    costs = measured(*[(1, 1.0)] * 3, *[(8, 90.0)] * 3)
    assert costs.seconds(8) > 80
    measured(*[(1, 1.0)] * 500, costs=costs)
    assert costs.seconds(8) < 2


def test_a_change_of_rows_takes_its_time() -> None:
    costs = measured(*[(1, 1.0)] * 8, *[(8, 2.0)] * 8, *[(1, 1.5), (8, 2.5)] * 60)
    assert costs.last_rows == 8
    assert costs.change_s(8) == 0.0
    assert costs.change_s(1) == pytest.approx(0.5, abs=0.05)
    assert (costs.seconds(1), costs.seconds(8)) == (1.0, 2.0)
    costs.note_prompts()
    assert costs.change_s(8) > 0, "a step with prompts has other rows"


def test_one_row_is_computed_as_two() -> None:
    costs = measured(*[(1, 1.0)] * 8, *[(2, 1.0)] * 8)
    assert costs.change_s(1) == costs.change_s(2) == 0.0


def test_contexts_cost_their_share_of_the_smallest_step() -> None:
    costs = RowCosts(context_share=1e-3)
    for _ in range(4):
        costs.observe(1, 1000, 2.0)
    assert costs.context_s == pytest.approx(1e-3, rel=1e-6)
    assert costs.seconds(1) == pytest.approx(1.0)
    assert costs.seconds(1) + 1000 * costs.context_s == pytest.approx(2.0)


def test_contexts_take_no_more_of_a_step_than_rows_leave() -> None:
    """By its sizes a token of a small model's cache takes more than it does: 8,000 of them more than the whole step."""
    costs = RowCosts(context_share=1e-3)
    for num_rows, num_context, seconds in [(1, 100, 1.1), (16, 8_000, 3.0), (1, 100, 1.1)]:
        for _ in range(5):
            costs.observe(num_rows, num_context, seconds)
    assert costs.seconds(1) == pytest.approx(1.0, rel=0.1)
    assert costs.seconds(16) == pytest.approx(1.0, rel=0.1), "never less than one of fewer rows"
    assert costs.seconds(16) + 8_000 * costs.context_s == pytest.approx(3.0, rel=0.05)


def test_what_was_measured_once_is_doubtful_and_what_is_measured_all_the_time_need_not_be_measured_always() -> None:
    costs = measured(*[(1, 1.0)] * 3, (4, 2.0), (4, 2.0))
    assert costs.is_doubtful(4)
    measured(*[(4, 2.0)] * 3, costs=costs)
    assert not costs.is_doubtful(4)
    num_skipped = 0
    for _ in range(120):
        if costs.skips(4):
            num_skipped += 1
        else:
            costs.observe(4, 0, 2.0)
    assert 70 < num_skipped < 100
    assert not costs.skips(1)
    assert not costs.is_doubtful(4)


@given(
    steps=st.lists(st.tuples(st.integers(1, 200), st.integers(0, 5_000), st.floats(0, 2)), min_size=1, max_size=60),
    share=st.sampled_from([0.0, 1e-4, 1e-2]),
)
def test_no_step_ever_takes_less_than_nothing(steps: list[tuple[int, int, float]], share: float) -> None:
    """What contexts take is an estimate, and was taken off more than a step had taken: the engine died of the difference."""
    costs = RowCosts(share)
    for num_rows, num_context, seconds in steps:
        costs.observe(num_rows, num_context, seconds)
    for num_rows in range(1, 300, 7):
        assert costs.seconds(num_rows) >= 0
        assert costs.change_s(num_rows) >= 0
    assert costs.context_s >= 0


def test_sizes_are_exact_for_few_rows_and_within_an_eighth_for_many() -> None:
    assert [size_of(rows) for rows in range(1, 17)] == list(range(1, 17))
    for rows in range(17, 600):
        assert rows <= size_of(rows) < rows * 1.13
        assert size_of(size_of(rows)) == size_of(rows)


def test_uneven_steps_are_told_within_a_tenth() -> None:
    stream = random.Random(1)
    costs = RowCosts()
    for _ in range(400):
        rows = stream.choice([1, 1, 1, 4, 8, 12])
        slow = 3.0 if stream.random() < 0.05 else 1.0
        costs.observe(rows, 0, (1 + rows / 10) * (1 + 0.05 * stream.random()) * slow)
    for rows in (1, 4, 8, 12):
        assert costs.seconds(rows) == pytest.approx(1 + rows / 10, rel=0.1)


def test_a_further_row_takes_what_measured_steps_of_more_rows_tell() -> None:
    costs = RowCosts()
    for _ in range(4):
        costs.observe(8, 0, 1.0)
    assert costs.further_row_s(8) is None
    for _ in range(5):
        costs.observe(12, 0, 1.2)
    assert costs.further_row_s(8) == pytest.approx(0.05)
    for _ in range(5):
        costs.observe(20, 0, 2.2)
    assert costs.further_row_s(8) == pytest.approx(0.1), "as many more as there are"
    assert costs.further_row_s(20) is None
