"""What the grammars of tests have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dragoman.types import NOTHING_FORESEEN, Foreseen, TokenMasker


class _Position(Protocol):
    def fork(self) -> TokenMasker: ...

    def fill_mask(self, bitmask_row: Any) -> None: ...


class ByForks:
    """For a TokenMasker that foresees nothing, looks ahead with a fork, and takes no time."""

    last_s = total_s = 0.0

    def fill_masks(self: _Position, bitmask_rows: Any, token_ids: Sequence[int]) -> None:
        """The masks here and after each of the tokens."""
        self.fill_mask(bitmask_rows[0])
        position = self.fork()
        for row, token_id in zip(bitmask_rows[1:], token_ids, strict=True):
            position.advance(token_id)
            position.fill_mask(row)

    def foresee(self, limit: int) -> Foreseen:
        """Nothing is forced."""
        return NOTHING_FORESEEN
