"""Refuses what could never run: requests that do not fit even if they have the whole cache to themselves.

Does: compare a request with the model's context, the cache and the number of sequences that run at once. Does not: look at
what runs now (the scheduler does). Called by `core` for every new request, on the engine thread only.
"""

from __future__ import annotations

from dragoman.engine.rolling.blocks.window import blocks_for, chunk_blocks, longest_sequence, most_blocks
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.forward.runner import ModelRunner
from dragoman.errors import CapacityError, InvalidRequest
from dragoman.types import EngineRequest


def check_capacity(request: EngineRequest, runner: ModelRunner, config: RollingConfig) -> None:
    """Raises CapacityError, with both numbers, if the request can never run to its end; InvalidRequest for no prompt."""
    if not request.prompt_ids:
        raise InvalidRequest("prompt_ids is empty, must hold at least 1 token", param="prompt")
    num_prompt, num_max = len(request.prompt_ids), request.max_tokens
    limits = ((cache_length(runner), "the KV cache holds"), (context_length(runner, config), "the model's context is"))
    for limit, what in limits:
        if limit is None:
            continue
        if num_prompt > limit:
            raise CapacityError(f"the prompt has {num_prompt} tokens, {what} {limit}", param="prompt")
        if num_prompt + num_max > limit:
            needed = f"{num_prompt} prompt tokens + max_tokens {num_max} = {num_prompt + num_max} tokens"
            raise CapacityError(f"{needed}, {what} {limit}", param="max_tokens")
    num_beams = request.sampling.num_beams
    if num_beams == 1:
        return
    if num_beams > config.max_num_seqs:
        message = f"num_beams is {num_beams}, at most {config.max_num_seqs} sequences run at once (max_num_seqs)"
        raise CapacityError(message, param="num_beams")
    for num_needed, pool in zip(num_beam_blocks(request, runner, config), runner.pools, strict=True):
        if num_needed > pool.num_blocks:
            message = f"num_beams {num_beams} with {num_prompt + num_max} tokens each needs {num_needed} KV blocks"
            layers = f" for the layers with a window of {pool.window}" if pool.window else ""
            raise CapacityError(f"{message}{layers}, the cache holds {pool.num_blocks}", param="num_beams")


def cache_length(runner: ModelRunner) -> int | None:
    """The tokens of the longest sequence that the cache holds when it is alone; None = of any length."""
    lengths = [longest_sequence(pool, runner.block_size) for pool in runner.pools]
    return min((length for length in lengths if length is not None), default=None)


def context_length(runner: ModelRunner, config: RollingConfig) -> int:
    """The most tokens of one sequence, prompt and answer, whatever the cache holds."""
    longest = runner.max_model_len
    return longest if config.max_model_len is None else min(longest, config.max_model_len)


def num_beam_blocks(request: EngineRequest, runner: ModelRunner, config: RollingConfig) -> list[int]:
    """Of each kind, the blocks with which the request's beams can always run side by side, as each waits for the others.

    They share the prompt's full blocks, but for one that would leave a single token behind it, and may have nothing else in
    common. They may not even share those where there are windows: after a preemption none may be left to go on from. Nor may
    they where they cross into the long regime, because they begin again there. The last token is never computed.
    """
    num_beams, num_prompt, size = request.sampling.num_beams, len(request.prompt_ids), runner.block_size
    if request.max_tokens < 2:  # the search ends with the prompt's own candidates
        num_beams = 1
    num_tokens = num_prompt + max(request.max_tokens - 1, 0)
    boundary = runner.long_context_from
    crosses = boundary is not None and num_prompt <= boundary < num_tokens
    num_shared = 0 if crosses or any(pool.window for pool in runner.pools) else num_prompt // size
    if num_shared * size == num_prompt - 1:  # the prompt's last token is never computed alone: see the scheduler
        num_shared = max(num_shared - 1, 0)
    longest = blocks_for(num_tokens, size)
    needed = []
    for pool in runner.pools:
        chunk = chunk_blocks(pool, size, config.max_batch_tokens) if pool.window else 0
        each = min(longest, most_blocks(pool.window, size)) if chunk else longest
        needed.append(num_shared + num_beams * (each - num_shared) + min(chunk, longest - each))
    return needed
