"""The simulation of a flood: a name of one's own keeps first tokens near, and costs the others nothing."""

from __future__ import annotations

from benchmarks.fairness import FLOOD, Case, Simulation

CASE = Case(num_waiting=60, prompt_tokens=20, answer_tokens=10, max_num_seqs=4, pause_ms=500, num_asked=4)


def test_a_guest_with_a_name_of_its_own_hardly_notices_a_flood() -> None:
    apart, together = Simulation(CASE), Simulation(CASE, guest_as=FLOOD)
    apart.run()
    together.run()
    assert len(apart.first_token_ms) == len(together.first_token_ms) == CASE.num_asked
    assert 5 * max(apart.first_token_ms) < min(together.first_token_ms)
    rates = [simulation.num_generated / simulation.time_ms for simulation in (apart, together)]
    assert min(rates) > 0.9 * max(rates)
