"""The plan of one step, as the scheduler decides it.

Does: hold the plan and count what is in it. Does not: decide anything, or change sequences. Made by the scheduler, read by
the batch builder, sampling and `update`, on the engine thread only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dragoman.engine.rolling.background import Room, StepParts
from dragoman.engine.rolling.blocks.block_pools import Copies
from dragoman.engine.rolling.sequence import Sequence


@dataclass(slots=True)
class ScheduledSequence:
    """The part of one sequence in a step: `num_new_tokens` from its first uncomputed one on.

    `num_sample_rows`: rows of logits to sample from: 0 while tokens remain, else one per sequence of the group when the
    prompt's end forks it, else one per draft token and one more. `num_prompt_rows`: rows for prompt log-probabilities.
    """

    sequence: Sequence
    num_new_tokens: int
    num_sample_rows: int
    num_prompt_rows: int = 0


@dataclass(slots=True)
class ScheduledBatch:
    """One step's work. `copies`: blocks to copy before the forward."""

    entries: list[ScheduledSequence] = field(default_factory=list)
    copies: Copies = field(default_factory=list)
    num_tokens: int = 0
    num_prompt_rows: int = 0
    num_preempted: int = 0
    num_prefill_tokens: int = 0  # tokens of entries that do not decode
    prefill_budget: int | None = None  # limits these, beside the limit on all tokens; None = it does not
    num_padding: int = 0  # rows that are computed beside, for nobody
    background: Room | None = None  # what sequences in the background may still take; None = all that is free
    background_tokens: int = 0  # of prompts in the background, among those above
    background_rows: int = 0  # of sequences in the background that decode
    begin_s: float = 0.0  # when it was planned, by the scheduler's clock

    def __bool__(self) -> bool:
        return bool(self.entries)

    @property
    def num_decode_rows(self) -> int:
        """Tokens of sequences that decode, guesses included: each is a row of its own."""
        return self.num_tokens - self.num_prefill_tokens

    def add(self, entry: ScheduledSequence) -> None:
        """Append an entry and count its tokens and rows."""
        self.entries.append(entry)
        self.num_tokens += entry.num_new_tokens
        is_decoding = entry.sequence.is_decoding
        if not is_decoding:
            self.num_prefill_tokens += entry.num_new_tokens
        self.num_prompt_rows += entry.num_prompt_rows
        if entry.sequence.group.is_background:
            self.background_rows += entry.num_new_tokens if is_decoding else 0
            self.background_tokens += 0 if is_decoding else entry.num_new_tokens
            if self.background is not None:
                self.background.take(entry.num_new_tokens, is_decoding=is_decoding)

    @property
    def parts(self) -> StepParts:
        """Its work for others and for the background."""
        return StepParts(
            self.num_decode_rows - self.background_rows,
            self.num_prefill_tokens - self.background_tokens,
            self.background_rows,
            self.background_tokens,
        )
