"""Divides memory among models when they are loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from dragoman.config.resolve import Config
from dragoman.engine.base import MemoryNeeds
from dragoman.host.loading import has_model
from dragoman.host.machine import GIB, available_memory_bytes

# The cache's share of free memory. The rest is for activations, HTTP and the page cache.
_SHARE_OF_FREE_MEMORY = 0.5


def split_memory(configs: Sequence[Config]) -> list[int | None]:
    """For each model its bytes besides the weights: equal parts of what all weights leave, None if alone.

    Models with `kv_cache_gb` take that. Decided before the first load, as an allocated but unused cache still looks
    free.
    """
    if len(configs) == 1:
        return [None]
    caches = [config.engine.kv_cache_gb for config in configs if has_model(config)]
    taken = sum(int(size * GIB) for size in caches if size is not None)
    weights = sum(file.stat().st_size for config in configs for file in _weight_files(config.model_dir))
    most_gb = configs[0].server.memory_gb if configs else None
    free = available_memory_bytes() if most_gb is None else min(available_memory_bytes(), int(most_gb * GIB))
    rest = max(0, free - taken - weights)
    return [rest // max(1, caches.count(None))] * len(configs)


def _weight_files(model: Path) -> Iterable[Path]:
    return (model,) if model.is_file() else (*model.glob("*.safetensors"), *model.glob("*.gguf"))


def cache_bytes(needs: MemoryNeeds, memory_bytes: int) -> int:
    """The bytes of cache that a model will probably allocate if it may use `memory_bytes` besides its weights."""
    return max(min(needs.useful_cache, int(memory_bytes * _SHARE_OF_FREE_MEMORY)), needs.least_cache)
