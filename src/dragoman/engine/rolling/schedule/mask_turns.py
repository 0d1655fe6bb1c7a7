"""Slow grammar masks take turns, so that one caller's grammar does not hold up all others' tokens.

Does: say which running sequences sit out a step. Does not: compute masks, or schedule. Called by the scheduler, on the
engine thread only.

A step waits for the masks of all its sequences. Most take a fraction of a millisecond, beside the forward pass. Those of an
ambiguous grammar may take a hundred. Then the sequences with such masks take turns, and the request that has taken least
goes first. Beside other sequences they have a quarter of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows

from dragoman.engine.rolling.sequence import Sequence
from dragoman.types import SLOW_MASK_S, TokenMasker

STEP_S = 0.01  # of slow masks in a step, unless the first alone takes longer
_PAUSE = 3  # seconds without slow masks for each with them, where others run


class MaskTurns:
    """The sequences that sit out steps. `clock`: in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: set[int] = set()  # sequences, by their ids
        self._next_s = 0.0  # when slow masks may be computed again beside others

    def choose(self, running: Rows[Sequence]) -> None:
        """Decide for the next step, by what the last tokens took."""
        slow = [(sequence, masker) for sequence in running if (masker := _slow_masker(sequence))]
        if not slow and not self._held:
            return
        now_s = self._clock()
        computed_s = sum([masker.last_s for sequence, masker in slow if sequence.sequence_id not in self._held])
        if computed_s:
            self._next_s = now_s + _PAUSE * computed_s
        self._held = {sequence.sequence_id for sequence, _ in slow}
        num_active = sum([not sequence.is_held for sequence in running])
        if num_active > len(slow) and now_s < self._next_s:
            return
        left_s = STEP_S
        for place, (sequence, masker) in enumerate(sorted(slow, key=_least_first)):
            left_s -= masker.last_s
            if place and left_s < 0:
                break
            self._held.discard(sequence.sequence_id)

    def sits_out(self, sequence: Sequence) -> bool:
        """True if the sequence computes nothing in this step."""
        return sequence.sequence_id in self._held

    def release(self) -> bool:
        """Let all take part, as nobody else can; False if all do."""
        had_held = bool(self._held)
        self._held.clear()
        return had_held


def _slow_masker(sequence: Sequence) -> TokenMasker | None:
    """The grammar of a sequence that computes masks, if they are slow; a held beam computes none."""
    masker = None if sequence.is_held else sequence.sampler_state.masker
    return masker if masker is not None and masker.last_s >= SLOW_MASK_S else None


def _least_first(one: tuple[Sequence, TokenMasker]) -> tuple[float, int]:
    """The request that has taken least, and of its sequences the shortest."""
    sequence, masker = one
    return masker.total_s, sequence.num_tokens
