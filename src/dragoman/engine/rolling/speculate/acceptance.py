"""Learns how often guesses hold, by comparing them with the sequences' next tokens. On the engine thread."""

from __future__ import annotations

from collections.abc import Collection

from dragoman.engine.rolling.speculate.proposer import NUM_STRENGTHS, Basis

_MEMORY = 0.98  # weight of earlier judgements, per guess with the same evidence
_PRIOR_WEIGHT = 4.0  # judged guesses that the prior counts as
_SEQUENCE_MEMORY = 0.88  # weight per sequence: texts change their nature
_SEQUENCE_WEIGHT = 1.5
_MOST = 0.995  # only a forced token is certain


# Shares of copied guesses that held, by the number of equal tokens before them, over five kinds of text: chat, summaries,
# edits, JSON, tool calls. Kinds differ as much as strengths do, so the prior counts little.
_OWN_TEXT = ((1, 0.45), (2, 0.5), (3, 0.7), (4, 0.8), (8, 0.87), (16, 0.92), (31, 0.97))
_RECENT_TEXT = ((1, 0.35), (2, 0.3), (3, 0.5), (4, 0.65), (8, 0.77), (16, 0.85), (31, 0.92))
_GRAMMAR = ((0, 0.65), (1, 0.97))  # by whether the last forced token may be the start of a longer one


def _prior(basis: int, strength: int) -> float:
    if basis == Basis.FORCED:
        return 1.0
    if basis == Basis.DRAFT_MODEL:
        return 0.1 + 0.85 * strength / (NUM_STRENGTHS - 1)
    known = {Basis.OWN_TEXT: _OWN_TEXT, Basis.RECENT_TEXT: _RECENT_TEXT, Basis.GRAMMAR: _GRAMMAR}[Basis(basis)]
    return max((share for least, share in known if strength >= least), default=known[0][1])


class Acceptance:
    """Shares of guesses that held, by `proposer.evidence`: for the engine, and relative to it for each sequence."""

    def __init__(self) -> None:
        kinds = [(basis, strength) for basis in range(len(Basis)) for strength in range(NUM_STRENGTHS)]
        self._held = [_PRIOR_WEIGHT * _prior(*kind) for kind in kinds]
        self._judged = [_PRIOR_WEIGHT] * len(kinds)
        self._shares = [held / _PRIOR_WEIGHT for held in self._held]
        # By sequence and basis: held guesses, and their expected number by the shares alone; both fade.
        self._own: dict[tuple[int, int], tuple[float, float]] = {}

    def factor(self, sequence_id: int, evidence: int) -> float:
        """The factor by which this sequence's guesses of a basis hold more often than others; 1 = as often."""
        held, expected = self._own.get((sequence_id, evidence // NUM_STRENGTHS), (0.0, 0.0))
        return (held + _SEQUENCE_WEIGHT) / (expected + _SEQUENCE_WEIGHT)

    def share(self, evidence: int, factor: float) -> float:
        """The probability that a guess holds if all before it do. `factor`: its sequence's."""
        if evidence < NUM_STRENGTHS:  # Basis.FORCED
            return 1.0
        return min(self._shares[evidence] * factor, _MOST)

    def judge(self, sequence_id: int, evidence: int, *, holds: bool) -> None:
        if evidence < NUM_STRENGTHS:
            return
        share = self._shares[evidence]
        self._held[evidence] = self._held[evidence] * _MEMORY + holds
        self._judged[evidence] = self._judged[evidence] * _MEMORY + 1.0
        self._shares[evidence] = self._held[evidence] / self._judged[evidence]
        key = (sequence_id, evidence // NUM_STRENGTHS)
        held, expected = self._own.get(key, (0.0, 0.0))
        self._own[key] = (held * _SEQUENCE_MEMORY + holds, expected * _SEQUENCE_MEMORY + share)

    def retain(self, sequence_ids: Collection[int]) -> None:
        """Forget all other sequences, but not the engine's shares."""
        for key in [key for key in self._own if key[0] not in sequence_ids]:
            del self._own[key]
