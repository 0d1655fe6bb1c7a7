"""The Proposer protocol, which guesses tokens for speculation, and its values.

Does: name them. Does not: guess (`own_text`, `recent_texts`, `forced_tokens`, `draft_model` do), or decide who speculates
and how far (`speculation`). Used on the engine thread only.
"""

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
    """The basis of a guess."""

    FORCED = 0  # the grammar allows nothing else
    OWN_TEXT = 1  # what followed earlier in the same sequence; strength: tokens that agree before it
    RECENT_TEXT = 2  # what followed in another request's text; strength: as above
    GRAMMAR = 3  # the usual tokens of a text that the grammar forces, which others spell as well
    DRAFT_MODEL = 4  # strength: the probability it gives to its guess, in steps of 1/31


def evidence(basis: Basis, strength: int = 0) -> int:
    """One number for a basis and its strength, 0 to 31 (larger ones count as 31): guesses of the same hold equally often."""
    return basis * NUM_STRENGTHS + min(strength, NUM_STRENGTHS - 1)


@dataclass(frozen=True, slots=True)
class Wish:
    """A sequence that wants at most `max_tokens` guesses, by runs of at most `max_ngram_size` equal tokens.

    `max_ngram_size` None = however long. With `min_confidence` a draft model stops before the first token that it trusts
    less than that (0 to 1). `block_table`: the sequence's blocks in order of position, for proposers that need slots.
    `is_fixed`: the request or the operator said how many guesses there shall be, whether they pay or not.
    """

    sequence: Sequence
    max_tokens: int
    max_ngram_size: int | None = None
    min_confidence: float | None = None
    block_table: array[int] = field(default_factory=lambda: array("i"))
    is_fixed: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """Guessed tokens, the next one first, and for each what it rests on (see `evidence`)."""

    token_ids: array[int]
    evidence: Rows[int]


NOTHING = Proposal(array("q"), ())


class Proposer(Protocol):
    """Guesses how sequences go on. Its answers change speed only, never tokens. Used on the engine thread.

    `needs_slots`: it keeps a cache of its own behind the same block tables, and a guess costs it a forward pass; else
    guesses cost next to nothing.
    """

    needs_slots: bool

    def propose(self, wishes: Rows[Wish]) -> list[Proposal]:
        """Guesses for each wish, in their order, possibly none. The sequences hold no drafts meanwhile.

        With `needs_slots` the slots of all positions up to the wished drafts are there and writable.
        """
        ...

    def retain(self, sequence_ids: Collection[int]) -> None:
        """Forget every sequence but these: the others have finished or lost their blocks."""
        ...

    def note_finished(self, sequence: Sequence) -> None:
        """The sequence has ended; its tokens are complete."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...
