"""The costs that are guarded, by name: what `limits.json` holds a number for.

Does: name and measure. Does not: compare (test_costs does) or write (record does).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tests.performance.engine_work import NUM_STEPS, EngineWork, count_decode, count_prefill, count_verified
from tests.performance.http_work import CLIENTS, count_stream

ROWS = 32
PROMPT_SIZE = 512
ANSWER_SIZE = 64


Costs = dict[str, float]
"""Instructions by name."""

SAMPLING: Mapping[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    "greedy, 5 log-probabilities": {"logprobs": 5},
}


def measure_decode(name: str) -> Costs:
    """A step of ROWS decoding sequences."""
    counts = count_decode(EngineWork(ROWS, sampling=SAMPLING[name]))
    return {f"engine, {name}: step of {ROWS} rows": counts.total / NUM_STEPS}


def measure_guessing() -> Costs:
    """A step of ROWS decoding sequences, whose texts are searched for guesses."""
    counts = count_decode(EngineWork(ROWS, guesses=True))
    return {f"engine, guesses looked for: step of {ROWS} rows": counts.total / NUM_STEPS}


def measure_verifying() -> Costs:
    """A token of answers that repeat themselves: guessed, chosen, verified, judged."""
    rows, num_tokens = 8, 256
    counts, num_generated = count_verified(EngineWork(rows, guesses=True, verifies=True), 128, num_tokens)
    return {f"engine, guesses verified: token of {rows} rows": counts.total / num_generated}


def measure_prefill() -> Costs:
    """A request with PROMPT_SIZE tokens, from the inbox to its first token, in pieces of at most 256."""
    counts = count_prefill(EngineWork(8, PROMPT_SIZE, max_batch_tokens=256))
    return {f"engine, prompt: {PROMPT_SIZE} tokens": counts.total / 8}


def measure_client(client: str) -> Costs:
    """A streamed call, on the event loop: until its first token was sent, and for each further token."""
    costs = count_stream(client, num_tokens=ANSWER_SIZE)
    return {f"{client}: to the first token": costs.first, f"{client}: token": costs.per_token}


CASES: Mapping[str, Callable[[], Costs]] = {
    **{f"engine, {name}": partial(measure_decode, name) for name in SAMPLING},
    "engine, guesses looked for": measure_guessing,
    "engine, guesses verified": measure_verifying,
    "engine, prompt": measure_prefill,
    **{client: partial(measure_client, client) for client in CLIENTS},
}


def token_costs(client: str) -> dict[str, tuple[float, float]]:
    """For each function of a token's way through the event loop: (instructions, calls) per token, dearest first."""
    few, many = (count_stream(client, num_tokens=size) for size in (ANSWER_SIZE, 2 * ANSWER_SIZE))
    found = {}
    for place, tally in many.loop.tallies.items():
        before = few.loop.tallies.get(place)
        num_instructions = tally.num_instructions - (before.num_instructions if before else 0)
        num_calls = tally.num_calls - (before.num_calls if before else 0)
        found[place.rsplit("/", 1)[-1]] = (num_instructions / ANSWER_SIZE, num_calls / ANSWER_SIZE)
    return dict(sorted(found.items(), key=lambda item: -item[1][0]))
