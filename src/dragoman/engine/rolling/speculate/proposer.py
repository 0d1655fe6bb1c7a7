"""What speculation asks of those who guess: the Proposer protocol, and the values it speaks in.

Does: name them. Does not: guess (`prompt_lookup`, `draft_model`), or decide who speculates (`speculation`).
Used on the engine thread only.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import Protocol

from dragoman.engine.rolling.sequence import Sequence


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """What requests get that do not say it themselves, and when to leave speculation alone.

    `num_assistant_tokens`: draft tokens per step. `max_ngram_size`: longest n-gram that prompt lookup matches.
    `max_batch`: with more running sequences nobody speculates: verifying costs a batch more than it saves.
    `is_default`: whether requests without any of the three parameters speculate.
    """

    num_assistant_tokens: int = 5
    max_ngram_size: int = 3
    max_batch: int = 8
    is_default: bool = True

    def __post_init__(self) -> None:
        least_of = {"num_assistant_tokens": 1, "max_ngram_size": 1, "max_batch": 1}
        for name, least in least_of.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least {least}")


@dataclass(frozen=True, slots=True)
class Wish:
    """A sequence that wants drafts: at most `max_tokens`, by n-grams of at most `max_ngram_size` tokens.

    With `min_confidence` a proposer stops before the first token that it trusts less than that (0 to 1). `block_table`:
    the sequence's blocks in order of position, for proposers that need slots.
    """

    sequence: Sequence
    max_tokens: int
    max_ngram_size: int
    min_confidence: float | None = None
    block_table: array[int] = field(default_factory=lambda: array("i"))


class Proposer(Protocol):
    """Guesses how sequences go on. Its answers change speed only, never tokens. Used on the engine thread."""

    config: SpeculationConfig
    needs_slots: bool  # True = it keeps a cache of its own behind the same block tables

    def propose(self, wishes: Rows[Wish]) -> list[array[int]]:
        """Draft tokens for each wish, in their order, possibly none. The sequences hold no drafts meanwhile.

        With `needs_slots` the slots of all positions up to the wished drafts are there and writable.
        """
        ...

    def retain(self, sequence_ids: Collection[int]) -> None:
        """Forget every sequence but these: the others have finished or lost their blocks."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...
