"""Which upstream gets a request: the one that is likely to have its prompt's beginning in its cache, unless it is too busy.

Does: rendezvous hashing on a digest of the prompt's leading blocks, with bounded loads. Does not: know anything of upstreams
but names and loads. Pure functions, called on the event loop.
Sources: Thaler and Ravishankar, "Using name-based mappings to increase hit rates" (1998), for rendezvous hashing; Mirrokni,
Thorup and Zadimoghaddam, "Consistent hashing with bounded loads" (arXiv:1608.01350).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence

import xxhash

BLOCK = 32  # tokens
LEADING_BLOCKS = 4
SLACK = 0.25  # how much more than its share of requests an upstream may have before prompts go elsewhere


def prefix_digest(prompt_ids: Sequence[int], salt: str = "") -> int | None:
    """A number for the prompt's leading whole blocks, at most four; None for a prompt that is shorter than a block.

    `salt`: prompts of different salts share nothing.
    """
    length = min(len(prompt_ids) // BLOCK, LEADING_BLOCKS) * BLOCK
    if not length:
        return None
    return xxhash.xxh3_64_intdigest(array("Q", prompt_ids[:length]).tobytes() + salt.encode())


def ranked(names: Sequence[str], digest: int) -> list[str]:
    """The names, the one that a digest belongs to first; without it, the next one is it, and so on."""
    return sorted(names, key=lambda name: xxhash.xxh3_64_intdigest(name.encode(), seed=digest), reverse=True)


def choose(loads: Mapping[str, int], digest: int | None) -> str:
    """The name of the upstream for a prompt. `loads`: requests that each has to answer, at least one upstream.

    Without a digest it is the one with the least load, the first of equals. With one it is the first of the digest's ranking
    whose load is below the bound: an even share of all requests, this one included, and `SLACK` more.
    """
    if digest is None or len(loads) == 1:
        return min(loads, key=lambda name: loads[name])
    bound = math.ceil((1 + SLACK) * (sum(loads.values()) + 1) / len(loads))
    return next(name for name in ranked(list(loads), digest) if loads[name] < bound)
