"""Proposes text that a sequence's grammar forces, in its usual tokens, and the forced end of reasoning.

On the engine thread between forwards, when no other thread uses the grammars. Most forced text can be tokenised in
several ways, and the model chooses. So the usual tokens are guesses like others; few are the only allowed ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Rows

from dragoman.engine.rolling.sample.sampler_state import SamplerState
from dragoman.engine.rolling.speculate.proposer import NOTHING, Basis, Proposal, Proposer, Wish, evidence

_OPEN, _CLOSED = 0, 1  # strengths by grammar: whether a longer token is possible in its place


class ForcedTokensProposer(Proposer):
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
