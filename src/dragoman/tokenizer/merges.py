"""Merges for byte-pair tokenizers that come as ranked tokens only, as SentencePiece and tiktoken write theirs.

Does: list every pair of tokens that makes a token. Does not: read files. Called at load time.
"""

from __future__ import annotations

from collections.abc import Iterable, Set


def all_merges(tokens: Iterable[str], parts: Set[str]) -> list[tuple[str, str]]:
    """The pairs that make each of `tokens`, which stand in the order in which they are made; halves are of `parts`.

    These tokenizers join the neighbours whose whole has the best rank, however it is made: so every way to make it counts.
    """
    merges: list[tuple[str, str]] = []
    for token in tokens:
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in parts and right in parts:
                merges.append((left, right))
    return merges
