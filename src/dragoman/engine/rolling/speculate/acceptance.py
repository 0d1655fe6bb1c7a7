"""Learns how often guesses hold from what sequences went on with, whether or not a guess was verified.

Does: keep the share of guesses that held, by what they rested on, and how far each sequence does better or worse. Does not:
guess, or know what a step costs (`row_costs`). Called by `speculation`, on the engine thread only.

A guess need not be verified to be judged: the sequence goes on in any case, and then it shows. So it costs nothing to notice
that a text has begun to repeat itself, or has ceased to.
"""

from __future__ import annotations

from collections.abc import Collection

from dragoman.engine.rolling.speculate.proposer import NUM_STRENGTHS, Basis

_MEMORY = 0.98  # of what is known, when a guess of the same evidence is judged
_PRIOR_WEIGHT = 4.0  # judged guesses that the first estimates count as
_SEQUENCE_MEMORY = 0.88  # of a sequence: texts change their nature
_SEQUENCE_WEIGHT = 1.5
_MOST = 0.995  # nothing but a forced token is certain


# Shares of copied guesses that held, by the number of equal tokens before them, over texts of five kinds: chat, summaries,
# edits, JSON, tool calls. Kinds differ by as much as strengths do, so that these count little.
_OWN_TEXT = ((1, 0.45), (2, 0.5), (3, 0.7), (4, 0.8), (8, 0.87), (16, 0.92), (31, 0.97))
_RECENT_TEXT = ((1, 0.35), (2, 0.3), (3, 0.5), (4, 0.65), (8, 0.77), (16, 0.85), (31, 0.92))
_GRAMMAR = ((0, 0.65), (1, 0.97))  # whether the last of the forced tokens may be the beginning of a longer one, or not


def _prior(basis: int, strength: int) -> float:
    """Before anything is known."""
    if basis == Basis.FORCED:
        return 1.0
    if basis == Basis.DRAFT_MODEL:
        return 0.1 + 0.85 * strength / (NUM_STRENGTHS - 1)
    known = {Basis.OWN_TEXT: _OWN_TEXT, Basis.RECENT_TEXT: _RECENT_TEXT, Basis.GRAMMAR: _GRAMMAR}[Basis(basis)]
    return max((share for least, share in known if strength >= least), default=known[0][1])


class Acceptance:
    """Shares of guesses that held, by `proposer.evidence`, for the whole engine and beside it for each sequence."""

    def __init__(self) -> None:
        kinds = [(basis, strength) for basis in range(len(Basis)) for strength in range(NUM_STRENGTHS)]
        self._held = [_PRIOR_WEIGHT * _prior(*kind) for kind in kinds]
        self._judged = [_PRIOR_WEIGHT] * len(kinds)
        self._shares = [held / _PRIOR_WEIGHT for held in self._held]
        # By sequence and basis: guesses that held, and how many would have by the shares alone; both fade.
        self._own: dict[tuple[int, int], tuple[float, float]] = {}

    def factor(self, sequence_id: int, evidence: int) -> float:
        """The factor by which guesses of such a basis hold oftener in this sequence than elsewhere; 1 = as often."""
        held, expected = self._own.get((sequence_id, evidence // NUM_STRENGTHS), (0.0, 0.0))
        return (held + _SEQUENCE_WEIGHT) / (expected + _SEQUENCE_WEIGHT)

    def share(self, evidence: int, factor: float) -> float:
        """The probability that a guess holds if all before it do. `factor`: its sequence's."""
        if evidence < NUM_STRENGTHS:  # Basis.FORCED
            return 1.0
        return min(self._shares[evidence] * factor, _MOST)

    def judge(self, sequence_id: int, evidence: int, *, holds: bool) -> None:
        """A guess, all before which held, did so too, or did not."""
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
        """Forget every sequence but these; what guesses are worth in general is kept."""
        for key in [key for key in self._own if key[0] not in sequence_ids]:
            del self._own[key]
