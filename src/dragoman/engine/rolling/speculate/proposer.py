"""The Proposer protocol, which guesses tokens for speculation, its values, and the proposer of forced tokens.

On the engine thread, between forwards, when no other thread uses the grammars.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from dragoman.engine.rolling.sample.sampler_state import SamplerState
from dragoman.engine.rolling.sequence import Sequence

NUM_STRENGTHS = 32
_OPEN, _CLOSED = 0, 1  # strengths by grammar: whether a longer token is possible in its place


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


class ForcedTokensProposer(Proposer):
    """Proposes text that a sequence's grammar forces, in its usual tokens, and the forced end of reasoning.

    Most forced text can be tokenised in several ways, and the model chooses. So the usual tokens are guesses like others;
    few are the only allowed ones.
    """

    def propose(self, wishes: Rows[Wish]) -> list[Proposal]:
        """A broken grammar is skipped here: sampling finds it next, and fails its request alone."""
        return [self._proposal(wish) for wish in wishes]

    @staticmethod
    def _proposal(wish: Wish) -> Proposal:
        state, group = wish.sequence.sampler_state, wish.sequence.group
        if state.watch is not None and state.watch.forced_ids:
            forced = array("q", state.watch.forced_ids[: wish.max_tokens])
            return Proposal(forced, [evidence(Basis.FORCED)] * len(forced))
        if state.masker is None:
            return NOTHING
        try:
            foreseen = state.masker.foresee(wish.max_tokens)
        except Exception:
            return NOTHING
        token_ids = array("q", foreseen.token_ids)
        if not token_ids or token_ids[0] in group.end_reasons:  # nothing follows the end
            return NOTHING
        kinds = [evidence(Basis.GRAMMAR, _CLOSED)] * len(token_ids)
        num_sure = foreseen.num_forced if is_sure(state) else 0
        kinds[:num_sure] = [evidence(Basis.FORCED)] * num_sure
        if foreseen.is_open and num_sure < len(token_ids):
            kinds[-1] = evidence(Basis.GRAMMAR, _OPEN)
        return Proposal(token_ids, kinds)


def is_sure(state: SamplerState) -> bool:
    """True if the grammar's only allowed token must come, as no other mask may ban it."""
    plan = state.plan
    has_bad_words = plan.bad_words.single_ids.size > 0 or plan.bad_words.max_context > 0
    return plan.allowed_ids is None and not has_bad_words and state.num_generated >= plan.params.min_tokens
