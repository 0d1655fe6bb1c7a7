"""Accounts for memory when a model is loaded: what there is, each model's part of it, and how many KV blocks that makes.

Does: arithmetic over options, file sizes and the machine's free memory. Does not: allocate.
Called by the host and the composition root.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman.config.resolve import Config
from dragoman.engine.base import MemoryNeeds
from dragoman.loading import has_model

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


def split_memory(configs: Sequence[Config]) -> list[int | None]:
    """For each model the bytes it may count on besides its weights: equal parts of what all weights leave, None if alone.

    Models with `kv_cache_gb` take that; the others share the rest, but for handlers without a model. Decided before the
    first is loaded, so that the last one gets as much as the first: a cache that was allocated and not yet used still
    looks free.
    """
    if len(configs) == 1:
        return [None]
    caches = [config.engine.kv_cache_gb for config in configs if has_model(config)]
    taken = sum(int(size * GIB) for size in caches if size is not None)
    weights = sum(file.stat().st_size for config in configs for file in config.model_dir.glob("*.safetensors"))
    rest = max(0, available_memory_bytes() - taken - weights)
    return [rest // max(1, caches.count(None))] * len(configs)


def cache_bytes(needs: MemoryNeeds, memory_bytes: int) -> int:
    """The bytes of the cache that a model will allocate if it may count on `memory_bytes` besides its weights."""
    affordable = int(min(memory_bytes * _SHARE_OF_FREE_MEMORY, _MOST_AUTOMATIC_BYTES))
    return max(min(needs.useful_cache, affordable), needs.least_cache)


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
