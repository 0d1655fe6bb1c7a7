"""Merges for byte-pair tokenizers that come as ranked tokens only, as SentencePiece and tiktoken write theirs.

Does: list every pair of tokens that makes a token. Does not: read files. Called at load time.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

_LONGEST = 1 << 10  # characters of a token, several times what any has: the time for one grows with its square
_MOST_CHARS = 1 << 25  # of all pairs; those of 256,000 tokens have some 5 million


def all_merges(tokens: Iterable[str], parts: Set[str]) -> list[tuple[str, str]]:
    """The pairs that make each of `tokens`, which stand in the order in which they are made; halves are of `parts`.

    These tokenizers join the neighbours whose whole has the best rank, however it is made: so every way to make it counts.
    Raises: ValueError for tokens that are longer, or made of each other in more ways, than those of any vocabulary.
    """
    merges: list[tuple[str, str]] = []
    lengths, num_chars = frozenset(map(len, parts)), 0
    for token in tokens:
        if len(token) > _LONGEST:
            raise ValueError(f"token {token[:20]!r}... has {len(token)} characters, allowed: at most {_LONGEST}")
        for cut in range(1, len(token)):
            if cut not in lengths or len(token) - cut not in lengths:
                continue
            left, right = token[:cut], token[cut:]
            if left in parts and right in parts:
                merges.append((left, right))
                num_chars += len(token)
        if num_chars > _MOST_CHARS:
            raise ValueError(f"its tokens can be merged in too many ways, up to {token[:20]!r}...")
    return merges
