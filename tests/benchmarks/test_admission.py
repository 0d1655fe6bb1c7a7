"""The simulation of admission: it serves everybody, and tells a good forecast from a bad one."""

from __future__ import annotations

from benchmarks.admission import Case, Simulation

CASE = Case("many at once", lambda _: 16, lambda _: 64, num_blocks=20, num_clients=16, num_requests=16)


def test_a_simulation_serves_everybody_and_counts_what_it_cost() -> None:
    foreseen, optimistic = Simulation(CASE, 256), Simulation(CASE, 1)
    foreseen.run()
    optimistic.run()
    assert (foreseen.stats.num_preemptions, foreseen.num_prompt_tokens) == (0, 16 * 16)
    assert optimistic.stats.num_preemptions > 0
    assert optimistic.num_prompt_tokens > foreseen.num_prompt_tokens
    assert min(foreseen.tokens_per_s, optimistic.tokens_per_s) > 0
