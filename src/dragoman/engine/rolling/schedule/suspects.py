"""Groups that were together in a step that failed: each is computed alone, to find out whose fault it was.

Does: remember whose turn it is, and when a group has shown that it is not at fault. Does not: move sequences (the scheduler
does) or tell anybody. On the engine thread.

A group is not at fault once it has got beyond the token at which it failed with the others. If none is, the step failed by
accident, or because of all of them. Then the next failure within PATIENCE_STEPS counts for every group in that step. So a
step that fails in company only is not tried for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from dragoman.engine.rolling.sequence import SequenceGroup

PATIENCE_STEPS = 200


class Suspects:
    """The groups that still have to be computed alone; most of the time none."""

    def __init__(self) -> None:
        self._groups: deque[tuple[SequenceGroup, int]] = deque()  # with the tokens that each had generated
        self._has_found = False
        self._last_accident: int | None = None  # the step after which nobody was found

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def current_key(self) -> int:
        """The group that is computed now."""
        return self._groups[0][0].key

    def begin(self, groups: Sequence[SequenceGroup], step: int) -> bool:
        """Have these computed alone, one after the other; False if that would tell nothing."""
        had_accident = self._last_accident is not None and step - self._last_accident < PATIENCE_STEPS
        if len(groups) < 2 or self._groups or had_accident:
            return False
        self._groups.extend((group, _num_generated(group)) for group in groups)
        self._has_found = False
        return True

    def note_removed(self, key: int) -> None:
        """A group was removed: the current one is at fault, or nobody waits for it any more."""
        if self._groups and key == self.current_key:
            self._has_found = True

    def is_cleared(self, is_there: bool) -> bool:
        """True if the current one needs no longer be alone; `is_there`: it has not finished, and was not removed."""
        group, num_before = self._groups[0]
        return not is_there or _num_generated(group) > num_before

    def go_on(self, step: int) -> None:
        """The current one is cleared, or gone."""
        self._groups.popleft()
        if not self._groups and not self._has_found:
            self._last_accident = step


def _num_generated(group: SequenceGroup) -> int:
    return sum(sequence.num_generated_tokens for sequence in group.sequences)
