"""Forecasts the blocks that running sequences will want, so that who is admitted can stay.

Does: learn how long answers become, and say whether one more sequence fits for as long as it is expected to run. Does not:
admit, count blocks itself, or promise anything: who outgrows the forecast may cost somebody a preemption. Called by the
scheduler, on the engine thread only.

Admission by what is free now lets in sequences that all grow at once, and throws most of them out again, to compute their
tokens a second time. Reserving `max_tokens` for each leaves most of the cache idle, because few answers become that long.
Source: the past-future scheduler, arXiv:2507.10150.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

_WINDOW = 512  # finished answers that are remembered
_FEWEST = 8  # of them, before they count


@dataclass(frozen=True, slots=True)
class Growing:
    """A sequence, or several that start as one: `num_copies` of them.

    `num_held` blocks are in its table, `num_released` of them become free when it finishes.
    """

    num_tokens: int
    num_generated: int
    max_generated: int
    num_held: int
    num_released: int
    num_copies: int = 1


class Forecast:
    """Knows the lengths of the last answers. `first_guess` counts as their length until there are some."""

    def __init__(self, block_size: int, first_guess: int) -> None:
        self._block_size = block_size
        self._first_guess = first_guess
        self._lengths: deque[int] = deque(maxlen=_WINDOW)
        self._sorted: Array | None = None  # of the lengths; None = to be made
        self._means: Array = np.zeros(0)  # entry i: of the sorted lengths from i on

    def note(self, num_generated: int) -> None:
        """An answer has ended with this many tokens."""
        self._lengths.append(num_generated)
        self._sorted = None

    def fits(self, newcomer: Growing, running: Sequence[Growing], num_spare: int) -> bool:
        """True if the blocks should suffice while `newcomer` runs; it holds its first ones, `num_spare` are free then."""
        everyone = [newcomer, *running]
        tokens = np.array([one.num_tokens for one in everyone])
        held = np.array([one.num_held for one in everyone])
        copies = np.array([one.num_copies for one in everyone])
        released = np.array([one.num_released for one in everyone])
        remaining = self._remaining(everyone)
        # The demand is highest just before somebody finishes: at these steps, as far as the newcomer is still there.
        steps = np.unique(remaining[remaining <= remaining[0]])[:, None]
        num_slots = tokens + steps - 1  # the newest token is not computed yet
        growth = (-(-num_slots // self._block_size) - held) * copies
        growth += copies - 1  # a copy that writes needs a block of its own
        demand = np.where(remaining >= steps, growth, -released).sum(axis=1)
        return bool(demand.max() <= num_spare)

    def _remaining(self, everyone: Sequence[Growing]) -> Array:
        """The tokens that each is expected to generate yet, at least 1: an answer becomes as long as others of its age did.

        Whoever is older than all that are remembered is expected to become twice as old.
        """
        generated = np.array([one.num_generated for one in everyone])
        limit = np.array([one.max_generated for one in everyone])
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
