"""How many blocks the key/value cache gets.

Does: arithmetic. Does not: measure memory or allocate. Called by the factory and by what it builds.
"""

from __future__ import annotations

_GIB = 1024**3

# Of what is free after the weights are loaded. The rest is for activations, HTTP and the page cache.
_SHARE_OF_FREE_MEMORY = 0.5
# More cache than this is rarely used by one CPU, whose speed bounds the number of useful sequences.
_MOST_AUTOMATIC_BYTES = 8 * _GIB
PLENTY_BYTES = int(_MOST_AUTOMATIC_BYTES / _SHARE_OF_FREE_MEMORY)
"""With as much memory, or more, the cache is as large as it ever becomes by itself."""


def choose_num_blocks(
    block_bytes: int,
    block_size: int,
    *,
    max_model_len: int,
    max_num_seqs: int,
    kv_cache_gb: float | None,
    available_bytes: int,
) -> int:
    """Blocks to allocate.

    With `kv_cache_gb` exactly what fits into it; otherwise enough for `max_num_seqs` sequences of full length, bounded by
    a share of the available memory, but never less than one sequence of full length.
    Raises: ValueError if `kv_cache_gb` is smaller than one block.
    """
    if kv_cache_gb is not None:
        num_blocks = int(kv_cache_gb * _GIB) // block_bytes
        if num_blocks < 1:
            raise ValueError(f"kv-cache-gb {kv_cache_gb} is smaller than one block ({block_bytes} bytes)")
        return num_blocks
    blocks_per_sequence = -(-max_model_len // block_size)
    wanted = blocks_per_sequence * max_num_seqs
    affordable = int(min(available_bytes * _SHARE_OF_FREE_MEMORY, _MOST_AUTOMATIC_BYTES)) // block_bytes
    return max(min(wanted, affordable), min(blocks_per_sequence, wanted))
