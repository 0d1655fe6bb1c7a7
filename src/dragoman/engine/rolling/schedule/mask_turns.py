"""Lets slow grammar masks take turns, so that one caller's grammar does not delay all others. On the engine thread.

A step waits for the masks of all its sequences, and that of an ambiguous grammar may take a hundred milliseconds. The
request that has used the least time goes first; while other sequences run, slow masks get a quarter of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows

from dragoman.engine.rolling.sequence import Sequence
from dragoman.types import SLOW_MASK_S, TokenMasker

STEP_S = 0.01  # of slow masks in a step, unless the first alone takes longer
_PAUSE = 3  # seconds without slow masks per second with them, while others run


class MaskTurns:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: set[int] = set()  # sequences, by their ids
        self._next_s = 0.0  # when slow masks may be computed again beside other sequences

    def choose(self, running: Rows[Sequence]) -> None:
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
        for place, (sequence, masker) in enumerate(sorted(slow, key=lambda one: (one[1].total_s, one[0].num_tokens))):
            left_s -= masker.last_s
            if place and left_s < 0:
                break
            self._held.discard(sequence.sequence_id)

    def sits_out(self, sequence: Sequence) -> bool:
        return sequence.sequence_id in self._held

    def release(self) -> bool:
        """Let all sequences take part, as no other can run; False if all do already."""
        had_held = bool(self._held)
        self._held.clear()
        return had_held


def _slow_masker(sequence: Sequence) -> TokenMasker | None:
    masker = None if sequence.is_held else sequence.sampler_state.masker
    return masker if masker is not None and masker.last_s >= SLOW_MASK_S else None
