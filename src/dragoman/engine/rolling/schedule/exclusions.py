"""Holds sequences back from a step, for the sake of the others. Called by the scheduler, on the engine thread.

`MaskTurns`: slow grammar masks take turns. `Suspects`: the groups of a failed step are computed one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Rows

from dragoman.engine.rolling.sequence import Sequence, SequenceGroup
from dragoman.types import SLOW_MASK_S, TokenMasker

STEP_S = 0.01  # of slow masks in a step, unless the first alone takes longer
PATIENCE_STEPS = 200
_PAUSE = 3  # seconds without slow masks per second with them, while others run


class MaskTurns:
    """Lets slow grammar masks take turns, so that one caller's grammar does not delay all others.

    A step waits for the masks of all its sequences, and that of an ambiguous grammar may take a hundred milliseconds.
    The request that has used the least time goes first; while other sequences run, slow masks get a quarter of the time.
    """

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
        for place, (sequence, masker) in enumerate(
            sorted(slow, key=lambda pair: (pair[1].total_s, pair[0].num_tokens))
        ):
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


class Suspects:
    """Finds the group that makes steps fail, by computing the groups of a failed step one by one.

    A group is cleared once it has got beyond the token at which the step failed. If all are cleared, the next failure
    within PATIENCE_STEPS counts against every group in that step: one that fails only in company is not repeated for
    ever.
    """

    def __init__(self) -> None:
        self._groups: deque[tuple[SequenceGroup, int]] = deque()  # with each group's number of generated tokens
        self._has_found = False
        self._last_accident: int | None = None  # the step after which all groups were cleared

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def current_key(self) -> int:
        return self._groups[0][0].key

    def begin(self, groups: Rows[SequenceGroup], step: int) -> bool:
        """False if computing these groups one by one would find nothing."""
        had_accident = self._last_accident is not None and step - self._last_accident < PATIENCE_STEPS
        if len(groups) < 2 or self._groups or had_accident:
            return False
        self._groups.extend((group, _num_generated(group)) for group in groups)
        self._has_found = False
        return True

    def note_removed(self, key: int) -> None:
        """The current group is at fault if it was removed, or its client has left."""
        if self._groups and key == self.current_key:
            self._has_found = True

    def is_cleared(self, is_there: bool) -> bool:
        """`is_there`: the current group has neither finished nor been removed."""
        group, num_before = self._groups[0]
        return not is_there or _num_generated(group) > num_before

    def go_on(self, step: int) -> None:
        self._groups.popleft()
        if not self._groups and not self._has_found:
            self._last_accident = step


def _num_generated(group: SequenceGroup) -> int:
    return sum(sequence.num_generated_tokens for sequence in group.sequences)
