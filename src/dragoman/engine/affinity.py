"""Orders replicas for a request: first the one that probably has the beginning of its prompt cached, unless it is busy.

Rendezvous hashing (Thaler, Ravishankar, 1998): each replica has a score for a key, and the highest wins, so all routers
agree without talking. With bounded load (1608.01350): replicas above `MAX_OVERLOAD` times the mean are passed over.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Mapping
from hashlib import blake2b

from dragoman.types import BLOCK_TOKENS, EngineRequest

MAX_OVERLOAD = 1.25
DEFAULT_PREFIX_TOKENS = 256


def prefix_key(request: EngineRequest, max_tokens: int = DEFAULT_PREFIX_TOKENS) -> bytes:
    """The key of a prompt's first whole blocks, at most `max_tokens` tokens; b"" if it is too short.

    Everything that keeps engines from sharing blocks is part of it, and the client's own key.
    """
    length = min(len(request.prompt_ids), max_tokens) // BLOCK_TOKENS * BLOCK_TOKENS
    if not length and not request.cache_key:
        return b""
    digest = blake2b(digest_size=16)
    pictures = (span.picture.digest for span in request.pictures if span.begin < length)
    for text in (request.cache_partition, request.adapter or "", request.cache_key, *pictures):
        digest.update(f"{len(text)}:{text}".encode())
    digest.update(struct.pack(f"<{length}q", *request.prompt_ids[:length]))
    return digest.digest()


def most_requests(loads: Collection[int]) -> int:
    """The most requests that a replica may have. Rounded up: else one at the mean of few would be passed over."""
    return math.ceil(MAX_OVERLOAD * (sum(loads) + 1) / max(len(loads), 1))


def preferred(key: bytes, loads: Mapping[str, int]) -> list[str]:
    """The replicas in the order in which a request with this key should try them. `loads`: the requests of each."""
    if not key:
        return sorted(loads, key=lambda replica: loads[replica])
    scores = {replica: _score(key, replica) for replica in loads}
    bound = most_requests(loads.values())
    is_over = {replica: load >= bound for replica, load in loads.items()}
    return sorted(
        loads,
        key=lambda replica: (is_over[replica], loads[replica] if is_over[replica] else 0, -scores[replica]),
    )


def _score(key: bytes, replica: str) -> int:
    return int.from_bytes(blake2b(replica.encode(), digest_size=8, key=key[:64]).digest(), "big")
