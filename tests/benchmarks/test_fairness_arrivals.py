"""The simulation of a flood counts a guest's wait from when it was due, whatever was computed then."""

from __future__ import annotations

import pytest

from benchmarks.fairness import Case, Simulation


def test_guests_that_are_due_while_a_step_is_computed_wait_for_its_end_too() -> None:
    simulation = Simulation(Case(num_waiting=0, prompt_tokens=100, answer_tokens=1, pause_ms=1.0, num_asked=3))
    simulation.run()
    first, second, third = simulation.first_token_ms[:3]  # due after 1, 2 and 3 ms; the second step is for both others
    assert second > first + 10
    assert second - third == pytest.approx(1.0)
