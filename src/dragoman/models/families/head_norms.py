"""Families that norm queries and keys before positions turn them: each head, or all of them as a whole.

Does: what several families inherit. Does not: name any. Source: arXiv:2302.05442.
"""

from __future__ import annotations

from dragoman.models.facts import AttentionFacts
from dragoman.models.families.llama import Llama
from dragoman.models.storage.constants import Node
from dragoman.models.weights import Weights


class NormsHeads(Llama):
    """Llama that norms each head's query and key."""

    def heads(self, q: Node, k: Node, weights: Weights, facts: AttentionFacts) -> tuple[Node, Node]:
        """Each head's query and key normed."""
        q, k = super().heads(q, k, weights, facts)
        return self.norm(q, weights.at("q_norm")), self.norm(k, weights.at("k_norm"))


class NormsWhole(Llama):
    """Llama that norms the queries, and the keys, of all heads together."""

    def heads(self, q: Node, k: Node, weights: Weights, facts: AttentionFacts) -> tuple[Node, Node]:
        """Normed over all heads together."""
        q, k = self.norm(q, weights.at("q_norm")), self.norm(k, weights.at("k_norm"))
        return super().heads(q, k, weights, facts)
