"""Refuses what could never run: requests that do not fit even if they have the whole cache to themselves.

Does: compare a request with the model's context, the cache and the number of sequences that run at once. Does not: look at
what runs now (the scheduler does). Called by `core` for every new request, on the engine thread only.
"""

from __future__ import annotations

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.forward.runner import ModelRunner
from dragoman.errors import CapacityError, InvalidRequest
from dragoman.types import EngineRequest


def check_capacity(request: EngineRequest, runner: ModelRunner, max_model_len: int, max_num_seqs: int) -> None:
    """Raises CapacityError, with both numbers, if the request can never run to its end; InvalidRequest for no prompt.

    `max_model_len`: see `context_length`. `max_num_seqs`: sequences that run at once.
    """
    if not request.prompt_ids:
        raise InvalidRequest("prompt_ids is empty, must hold at least 1 token", param="prompt")
    num_prompt, num_max = len(request.prompt_ids), request.max_tokens
    cache = runner.num_blocks * runner.block_size
    for limit, what in ((cache, "the KV cache holds"), (max_model_len, "the model's context is")):
        if num_prompt > limit:
            raise CapacityError(f"the prompt has {num_prompt} tokens, {what} {limit}", param="prompt")
        if num_prompt + num_max > limit:
            needed = f"{num_prompt} prompt tokens + max_tokens {num_max} = {num_prompt + num_max} tokens"
            raise CapacityError(f"{needed}, {what} {limit}", param="max_tokens")
    num_beams = request.sampling.num_beams
    if num_beams == 1:
        return
    if num_beams > max_num_seqs:
        message = f"num_beams is {num_beams}, at most {max_num_seqs} sequences run at once (max_num_seqs)"
        raise CapacityError(message, param="num_beams")
    num_needed = num_beam_blocks(num_beams, num_prompt, num_max, runner.block_size)
    if num_needed > runner.num_blocks:
        message = f"num_beams {num_beams} with {num_prompt + num_max} tokens each needs {num_needed} KV blocks"
        raise CapacityError(f"{message}, the cache holds {runner.num_blocks}", param="num_beams")


def context_length(runner: ModelRunner, config: RollingConfig) -> int:
    """The most tokens of one sequence, prompt and answer, whatever the cache holds."""
    longest = runner.max_model_len
    return longest if config.max_model_len is None else min(longest, config.max_model_len)


def num_beam_blocks(num_beams: int, num_prompt: int, max_tokens: int, block_size: int) -> int:
    """The blocks with which beams can always run side by side, as they must: each waits for the others.

    They share the prompt's full blocks, and may have nothing else in common. The last token is never computed.
    """
    if max_tokens < 2:  # the search ends with the prompt's own candidates
        return -(-num_prompt // block_size)
    num_shared = num_prompt // block_size
    num_longest = -(-(num_prompt + max_tokens - 1) // block_size)
    return num_shared + num_beams * (num_longest - num_shared)
