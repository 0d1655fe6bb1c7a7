"""Refuses requests that can never run, and forecasts whether a sequence can run without preemptions.

Called on the engine thread only. Admission by the free blocks of the moment admits sequences that all grow at once, and
are preempted; reserving `max_tokens` for each leaves most of the cache idle. Source: the past-future scheduler,
arXiv:2507.10150.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Rows
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from dragoman.engine.rolling.blocks.block_manager import (
    BlockManager,
    blocks_for,
    chunk_blocks,
    longest_sequence,
    most_blocks,
)
from dragoman.engine.rolling.blocks.block_pools import BlockPools, Prefix
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.forward.runner import ModelRunner
from dragoman.engine.rolling.sequence import Sequence
from dragoman.errors import CapacityError, InvalidParameter, InvalidRequest
from dragoman.types import EngineRequest

Array: TypeAlias = np.ndarray[Any, Any]

_WINDOW = 512  # the last finished answers that count
_FEWEST = 8  # answers needed before they count


# --- refusing what could never run ------------------------------------------------------------------------------------


def check_capacity(request: EngineRequest, runner: ModelRunner, config: RollingConfig) -> None:
    """Raises CapacityError if the request can never run to its end; InvalidRequest without a prompt, with too many beams."""
    if not request.prompt_ids:
        raise InvalidRequest("prompt_ids is empty, must hold at least 1 token", param="prompt")
    num_prompt, num_max = len(request.prompt_ids), request.max_tokens
    longest = None
    if request.shift is not None:
        longest = request.shift.longest
        num_max = min(num_max, max(longest - num_prompt, 1))
    limits = (
        (cache_length(runner), "the KV cache holds"),
        (context_length(runner, config), "the model's context is"),
        (longest, "the context is shifted at"),
    )
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
        allowed = f"at most {config.max_num_seqs} sequences run at once (max_num_seqs)"
        message = f"num_beams (best_of in OpenAI's APIs) is {num_beams}, {allowed}"
        raise InvalidParameter(message, param="num_beams")
    for num_needed, pool in zip(num_beam_blocks(request, runner, config), runner.pools, strict=True):
        if num_needed > pool.num_blocks:
            message = f"num_beams {num_beams} with {num_prompt + num_max} tokens each needs {num_needed} KV blocks"
            layers = f" for the layers with a window of {pool.window}" if pool.window else ""
            raise CapacityError(f"{message}{layers}, the cache holds {pool.num_blocks}", param="num_beams")


def cache_length(runner: ModelRunner) -> int | None:
    """The tokens of the longest sequence that fits into the cache alone; None = any length."""
    lengths = [longest_sequence(pool, runner.block_size) for pool in runner.pools]
    return min((length for length in lengths if length is not None), default=None)


def context_length(runner: ModelRunner, config: RollingConfig) -> int:
    longest = runner.max_model_len
    return longest if config.max_model_len is None else min(longest, config.max_model_len)


def num_beam_blocks(request: EngineRequest, runner: ModelRunner, config: RollingConfig) -> list[int]:
    """The blocks of each kind that let the request's beams run side by side, as each waits for the others.

    They share the prompt's full blocks, but not with windows: these blocks may be gone after a preemption. Nor do they
    beyond the start of the long regime, where they start again. The last token is never computed.
    """
    num_beams, num_prompt, size = request.sampling.num_beams, len(request.prompt_ids), runner.block_size
    if request.max_tokens < 2:  # the search ends with the prompt's own candidates
        num_beams = 1
    num_tokens = num_prompt + max(request.max_tokens - 1, 0)
    boundary = runner.long_context_from
    crosses = boundary is not None and num_prompt <= boundary < num_tokens
    num_shared = 0 if crosses or any(pool.window for pool in runner.pools) else num_prompt // size
    if num_shared * size == num_prompt - 1:  # the prompt's last token is never computed alone: see `prompts`
        num_shared = max(num_shared - 1, 0)
    longest = blocks_for(num_tokens, size)
    needed = []
    for pool in runner.pools:
        chunk = chunk_blocks(pool, size, config.max_batch_tokens) if pool.window else 0
        each = min(longest, most_blocks(pool.window, size)) if chunk else longest
        needed.append(num_shared + num_beams * (each - num_shared) + min(chunk, longest - each))
    return needed


# --- the forecast -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Growing:
    """A sequence, or `num_copies` of them that start together. `num_released`: the blocks that its end makes free."""

    num_tokens: int
    num_generated: int
    max_generated: int
    num_held: int
    num_released: int
    num_copies: int = 1


class Forecast:
    """Predicts the length of answers from the last ones; until there are enough, from `first_guess`."""

    def __init__(self, block_size: int, first_guess: int) -> None:
        self._block_size = block_size
        self._first_guess = first_guess
        self._lengths: deque[int] = deque(maxlen=_WINDOW)
        self._sorted: Array | None = None  # the sorted lengths; None = outdated
        self._means: Array = np.zeros(0)  # entry i: the mean of the sorted lengths from i on

    def note(self, num_generated: int) -> None:
        self._lengths.append(num_generated)
        self._sorted = None

    def fits(self, newcomer: Growing, running: Rows[Growing], num_spare: int, most: int | None = None) -> bool:
        """True if the blocks should suffice while `newcomer` runs, which holds its first ones.

        `most`: the bound of one sequence's blocks; None = it needs blocks for all its tokens.
        """
        everyone = [newcomer, *running]
        tokens = np.array([sequence.num_tokens for sequence in everyone])
        held = np.array([sequence.num_held for sequence in everyone])
        copies = np.array([sequence.num_copies for sequence in everyone])
        released = np.array([sequence.num_released for sequence in everyone])
        remaining = self._remaining(everyone)
        # Demand peaks just before a sequence finishes: look at these steps, until the newcomer itself finishes.
        steps = np.unique(remaining[remaining <= remaining[0]])[:, None]
        num_slots = tokens + steps - 1  # the newest token is not computed yet
        wanted = -(-num_slots // self._block_size)
        # Copies share their first blocks; with windows they soon pass these.
        growth = (wanted - held) * copies if most is None else np.minimum(wanted, most) * copies - held
        growth += copies - 1  # a copy that writes needs a block of its own
        demand = np.where(remaining >= steps, growth, -released).sum(axis=1)
        return bool(demand.max() <= num_spare)

    def remaining(self, everyone: Rows[Growing]) -> list[int]:
        return [int(count) for count in self._remaining(everyone)]

    def _remaining(self, everyone: Rows[Growing]) -> Array:
        """The expected number of tokens that each has still to generate: up to the mean of the longer answers."""
        generated = np.array([sequence.num_generated for sequence in everyone])
        limit = np.array([sequence.max_generated for sequence in everyone])
        expected = np.maximum(2 * generated, self._first_guess)
        if len(self._lengths) >= _FEWEST:
            lengths = self._sort()
            position = np.searchsorted(lengths, generated, side="right")
            is_known = position < len(lengths)
            expected = np.where(is_known, self._means[np.minimum(position, len(lengths) - 1)], 2 * generated)
        remaining: Array = np.minimum(np.ceil(expected).astype(np.int64), limit) - generated
        return np.maximum(remaining, 1)

    def _sort(self) -> Array:
        if self._sorted is None:
            self._sorted = np.sort(np.array(self._lengths))
            counts = np.arange(len(self._sorted), 0, -1)
            self._means = np.cumsum(self._sorted[::-1])[::-1] / counts
        return self._sorted


class Admission:
    def __init__(self, config: RollingConfig, blocks: BlockPools) -> None:
        self._blocks = blocks
        self._forecast = Forecast(blocks.block_size, config.assumed_output_tokens)
        # For each kind: the most blocks that a decoding sequence holds, None = unbounded; and the blocks to keep free for
        # pieces of prompts that are longer than the window.
        self._most: list[int | None] = []
        self._reserves: list[int] = []
        for pool in blocks.pools:
            self._most.append(most_blocks(pool.window, blocks.block_size) if pool.window else None)
            reserve = chunk_blocks(pool, blocks.block_size, config.max_batch_tokens) if pool.window else 0
            self._reserves.append(reserve)

    def note(self, num_generated: int) -> None:
        self._forecast.note(num_generated)

    def remaining(self, running: Rows[Sequence]) -> list[int]:
        return self._forecast.remaining([_growing(sequence, 0) for sequence in running])

    def can_stay(self, sequence: Sequence, prefix: Prefix, end: int, running: Rows[Sequence]) -> bool:
        """True if there are blocks for `sequence` after `prefix` beside `running`, and probably will be until it ends."""
        spares = self._blocks.num_spare_blocks(sequence.num_tokens, prefix, end)
        if min(spares) < 0 or not running:
            return min(spares) >= 0
        return all(
            self._suffices(
                kind,
                self._newcomer(kind, sequence, prefix, end),
                running,
                num_spare - self._reserve(kind, (sequence, *running)),
            )
            for kind, num_spare in enumerate(spares)
        )

    def _newcomer(self, kind: int, sequence: Sequence, prefix: Prefix, end: int) -> Growing:
        wanted = sequence.num_tokens if self._most[kind] is None else end
        num_passed = prefix.length - len(prefix.blocks[kind])
        return _growing(sequence, blocks_for(wanted, self._blocks.block_size) - num_passed)

    def _reserve(self, kind: int, everyone: Rows[Sequence]) -> int:
        """The blocks that pieces of these sequences' prompts may need beyond their windows."""
        most, reserve = self._most[kind], self._reserves[kind]
        if most is None or not reserve:
            return 0
        longest = max(sequence.num_prompt_tokens + sequence.group.request.max_tokens - 1 for sequence in everyone)
        return min(reserve, max(blocks_for(longest, self._blocks.block_size) - most, 0))

    def _suffices(self, kind: int, newcomer: Growing, running: Rows[Sequence], num_spare: int) -> bool:
        manager: BlockManager = self._blocks.managers[kind]
        most = self._most[kind]
        # First without the blocks that finishing sequences release: counting them takes longer, and rarely matters.
        others = [_growing(sequence, manager.num_held_blocks(sequence.sequence_id)) for sequence in running]
        if self._forecast.fits(newcomer, others, num_spare, most):
            return True
        releases = [manager.num_own_blocks(sequence.sequence_id) for sequence in running]
        others = [replace(growing, num_released=release) for growing, release in zip(others, releases, strict=True)]
        return self._forecast.fits(newcomer, others, num_spare, most)


def _growing(sequence: Sequence, num_held: int) -> Growing:
    group = sequence.group
    return Growing(
        sequence.num_tokens,
        sequence.num_generated_tokens,
        sequence.num_generated_tokens + sequence.num_left,
        num_held,
        num_released=0,
        num_copies=1 + group.num_unforked,
    )
