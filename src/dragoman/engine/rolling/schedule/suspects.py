"""Finds the group that makes steps fail, by computing the groups of a failed step one by one. On the engine thread.

A group is cleared once it has got beyond the token at which the step failed. If all are cleared, the next failure
within PATIENCE_STEPS counts against every group in that step: one that fails only in company is not repeated for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from dragoman.engine.rolling.sequence import SequenceGroup

PATIENCE_STEPS = 200


class Suspects:
    def __init__(self) -> None:
        self._groups: deque[tuple[SequenceGroup, int]] = deque()  # with each group's number of generated tokens
        self._has_found = False
        self._last_accident: int | None = None  # the step after which all groups were cleared

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def current_key(self) -> int:
        return self._groups[0][0].key

    def begin(self, groups: Sequence[SequenceGroup], step: int) -> bool:
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
