"""The costs that are guarded, by name: what `limits.json` holds a number for.

Does: name and measure. Does not: compare (test_costs does) or write (record does).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from tests.performance.counter import InstructionCounter
from tests.performance.engine_work import NUM_STEPS, EngineWork, count_decode, count_prefill
from tests.performance.http_work import CLIENTS, count_stream

ROWS = 32
PROMPT_SIZE = 512
ANSWER_SIZE = 64


class Measured(NamedTuple):
    """The costs of one piece of work, in instructions by name, and the counter they come from, for a closer look."""

    costs: Mapping[str, float]
    counter: InstructionCounter


SAMPLING: Mapping[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    "greedy, 5 log-probabilities": {"logprobs": 5},
}


def measure_decode(name: str) -> Measured:
    """A step of ROWS decoding sequences."""
    counter = count_decode(EngineWork(ROWS, sampling=SAMPLING[name]))
    return Measured({f"engine, {name}: step of {ROWS} rows": counter.total / NUM_STEPS}, counter)


def measure_prefill() -> Measured:
    """A request with PROMPT_SIZE tokens, from the inbox to its first token, in pieces of at most 256."""
    counter = count_prefill(EngineWork(8, PROMPT_SIZE, max_batch_tokens=256))
    return Measured({f"engine, prompt: {PROMPT_SIZE} tokens": counter.total / 8}, counter)


def measure_client(client: str) -> Measured:
    """A streamed call, on the event loop: until its first token was sent, and for each further token."""
    costs = count_stream(client, num_tokens=ANSWER_SIZE)
    return Measured({f"{client}: to the first token": costs.first, f"{client}: token": costs.per_token}, costs.loop)


CASES: Mapping[str, Callable[[], Measured]] = {
    **{f"engine, {name}": partial(measure_decode, name) for name in SAMPLING},
    "engine, prompt": measure_prefill,
    **{client: partial(measure_client, client) for client in CLIENTS},
}


def token_costs(client: str) -> dict[str, tuple[float, float]]:
    """For each function of a token's way through the event loop: (instructions, calls) per token, dearest first."""
    few, many = (count_stream(client, num_tokens=size) for size in (ANSWER_SIZE, 2 * ANSWER_SIZE))
    found = {}
    for code, tally in many.loop.tallies.items():
        before = few.loop.tallies.get(code)
        num_instructions = tally.num_instructions - (before.num_instructions if before else 0)
        num_calls = tally.num_calls - (before.num_calls if before else 0)
        place = f"{code.co_filename.rsplit('/', 1)[-1]} {code.co_qualname}:{code.co_firstlineno}"
        found[place] = (num_instructions / ANSWER_SIZE, num_calls / ANSWER_SIZE)
    return dict(sorted(found.items(), key=lambda item: -item[1][0]))
