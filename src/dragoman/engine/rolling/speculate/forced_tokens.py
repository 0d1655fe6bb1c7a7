"""Jump-ahead: text that a sequence's grammar forces is proposed as it is usually spelled, and the end of reasoning as it is.

Does: ask the grammars, and what ends reasoning. Does not: know them, or run a model. A `Proposer`, called by `speculation`,
on the engine thread between forwards, when nobody else uses the grammars.

Most forced text can be spelled in several ways, `{"name` also as `{`, `"`, `name`: the model chooses, so the usual tokens
are guesses like others, and mostly right. Few tokens are the only ones allowed: control tokens, letters that no longer token
of the text begins with.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from collections.abc import Sequence as Rows

from dragoman.engine.rolling.sample.sampler_state import SamplerState
from dragoman.engine.rolling.sequence import Sequence
from dragoman.engine.rolling.speculate.proposer import NOTHING, Basis, Proposal, Wish, evidence

_OPEN, _CLOSED = 0, 1  # strengths of a guess by grammar: whether a longer token may stand in its place


class ForcedTokensProposer:
    """Proposes what the sequences' grammars force. Keeps nothing."""

    needs_slots = False

    def propose(self, wishes: Rows[Wish]) -> list[Proposal]:
        """See `Proposer`. A grammar that breaks is given up here: sampling meets it next, and fails its request alone."""
        return [self._proposal(wish) for wish in wishes]

    def retain(self, sequence_ids: Collection[int]) -> None:
        """Nothing is kept."""

    def note_finished(self, sequence: Sequence) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is kept."""

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
        if not token_ids or token_ids[0] in group.end_reasons:  # nothing comes behind the end
            return NOTHING
        kinds = [evidence(Basis.GRAMMAR, _CLOSED)] * len(token_ids)
        num_sure = foreseen.num_forced if is_sure(state) else 0
        kinds[:num_sure] = [evidence(Basis.FORCED)] * num_sure
        if foreseen.is_open and num_sure < len(token_ids):
            kinds[-1] = evidence(Basis.GRAMMAR, _OPEN)
        return Proposal(token_ids, kinds)


def is_sure(state: SamplerState) -> bool:
    """True if the only token that a grammar allows is certain to come: no other mask may ban it.

    Allowed tokens and bad words ban any; the bans until `min_tokens` concern tokens that end a sequence. If a ban leaves
    nothing, the sequence ends instead. (So it does behind logits that are not numbers, whatever a grammar says.)
    """
    plan = state.plan
    has_bad_words = plan.bad_words.single_ids.size > 0 or plan.bad_words.max_context > 0
    return plan.allowed_ids is None and not has_bad_words and state.num_generated >= plan.params.min_tokens
