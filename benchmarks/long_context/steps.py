"""Prompts computed piece by piece on the real kernels, each with what it took.

Does not: print. Used by `contenders`.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from benchmarks.long_context.filled_runner import prompt_batch
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner

_PIECE = 512  # tokens: the server's default limit of a step


@dataclass(frozen=True, slots=True)
class PromptCost:
    """Milliseconds for each token of a prompt, and what of that is attention: what grows with the place in the prompt."""

    ms_per_token: float
    attention_ms: float


def prompt_cost(runner: OpenVinoRunner, num_tokens: int) -> PromptCost:
    """A prompt in pieces, as a server without other requests computes it.

    What a token costs besides attention is what it costs in the first piece, or in one of as many tokens.
    """
    pieces = [(begin, min(_PIECE, num_tokens - begin)) for begin in range(0, num_tokens, _PIECE)]
    times = []
    for begin, count in pieces:
        batch = prompt_batch(begin, count)
        start = perf_counter()
        runner.forward(batch)
        times.append(perf_counter() - start)
    total, without = sum(times), times[0] / pieces[0][1] * num_tokens
    return PromptCost(1000 * total / num_tokens, 1000 * max(total - without, 0.0) / num_tokens)
