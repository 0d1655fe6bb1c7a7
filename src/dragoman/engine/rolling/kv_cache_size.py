"""Decides how many KV blocks to allocate: once, at start.

Does: arithmetic over an option or the machine's free memory. Does not: allocate.
Called by the composition root.
"""

from __future__ import annotations

from pathlib import Path

GIB = 1024**3

# Of what is free after the weights are loaded. The rest is for activations, HTTP and the page cache.
_SHARE_OF_FREE_MEMORY = 0.5
# More cache than this is rarely used by one CPU, whose speed bounds the number of useful sequences.
_MOST_AUTOMATIC_BYTES = 8 * GIB


def available_memory_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory this process may still use: what the kernel calls available, bounded by the container's limit."""
    available = 4 * GIB  # a machine that does not tell
    for line in meminfo.read_text().splitlines() if meminfo.exists() else ():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    try:
        limit, used = (cgroup / "memory.max").read_text().strip(), (cgroup / "memory.current").read_text().strip()
        if limit != "max":
            available = min(available, max(0, int(limit) - int(used)))
    except (OSError, ValueError):
        pass  # no container limit
    return available


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
        num_blocks = int(kv_cache_gb * GIB) // block_bytes
        if num_blocks < 1:
            raise ValueError(f"kv-cache-gb {kv_cache_gb} is smaller than one block ({block_bytes} bytes)")
        return num_blocks
    blocks_per_sequence = -(-max_model_len // block_size)
    wanted = blocks_per_sequence * max_num_seqs
    affordable = int(min(available_bytes * _SHARE_OF_FREE_MEMORY, _MOST_AUTOMATIC_BYTES)) // block_bytes
    return max(min(wanted, affordable), min(blocks_per_sequence, wanted))
