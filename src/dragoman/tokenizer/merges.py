"""Lists merges for byte-pair tokenizers that come as ranked tokens only, as SentencePiece and tiktoken write theirs."""

from __future__ import annotations

from collections.abc import Iterable, Set

_LONGEST = 1 << 10  # characters of a token, several times any real one; time grows with the square
_MOST_CHARS = 1 << 25  # of all pairs; 256,000 tokens have some 5 million


def all_merges(tokens: Iterable[str], parts: Set[str]) -> list[tuple[str, str]]:
    """The pairs that make each of `tokens`, given in the order in which they are made; both halves are in `parts`.

    These tokenizers join the neighbours with the best rank of the whole, so every pair counts. Raises: ValueError.
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
