"""The Proposer protocol, which guesses tokens for speculation, and its values. Used on the engine thread only."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from dragoman.engine.rolling.sequence import Sequence

NUM_STRENGTHS = 32


class Basis(IntEnum):
    FORCED = 0  # the grammar allows no other token
    OWN_TEXT = 1  # copied from the same sequence; strength: the agreeing tokens before it
    RECENT_TEXT = 2  # copied from another request's text; strength: as above
    GRAMMAR = 3  # the usual tokens of a text that the grammar forces, but that other tokens can spell too
    DRAFT_MODEL = 4  # strength: the draft's probability for its guess, in steps of 1/31


def evidence(basis: Basis, strength: int = 0) -> int:
    """A basis and its strength, 0 to 31 (larger ones count as 31), as one number: equal ones hold equally often."""
    return basis * NUM_STRENGTHS + min(strength, NUM_STRENGTHS - 1)


@dataclass(frozen=True, slots=True)
class Wish:
    """A sequence's wish for at most `max_tokens` guesses, from matches of at most `max_ngram_size` tokens.

    A draft model stops before the first token whose probability is below `min_confidence`. `block_table`: for proposers
    that need slots. `is_fixed`: the request or the operator set the number of guesses, whether they pay or not.
    """

    sequence: Sequence
    max_tokens: int
    max_ngram_size: int | None = None
    min_confidence: float | None = None
    block_table: array[int] = field(default_factory=lambda: array("i"))
    is_fixed: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """Guessed tokens, the next one first, each with its evidence."""

    token_ids: array[int]
    evidence: Rows[int]


NOTHING = Proposal(array("q"), ())


class Proposer(Protocol):
    """Guesses how sequences go on. Affects speed only, never tokens. By default it keeps nothing.

    `needs_slots`: it has its own cache with the same block tables, and each guess costs a forward pass.
    """

    needs_slots: bool = False

    def propose(self, wishes: Rows[Wish]) -> list[Proposal]:
        """Guesses for each wish, in order, possibly none. The sequences hold no drafts meanwhile.

        With `needs_slots`, the slots of all positions up to the wished drafts are allocated and writable.
        """
        ...

    def retain(self, sequence_ids: Collection[int]) -> None:
        """Forget all other sequences: they have finished or lost their blocks."""
        return

    def note_finished(self, sequence: Sequence) -> None:
        return

    def close(self) -> None:
        return
