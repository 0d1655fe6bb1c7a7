"""Accounts for memory when a model is loaded: what there is, each model's part of it, and how many KV blocks that
makes.

Does: arithmetic over options, file sizes and the machine's free memory. Does not: allocate.
Called by the host and the composition root.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman.config.resolve import WEIGHTS_CONFIG, Config
from dragoman.engine.base import MemoryNeeds
from dragoman.loading import has_model, model_options
from dragoman.models import BLOCK_SIZE
from dragoman.models.config import parse_llama_config, read_json
from dragoman.models.weights import weight_files

GIB = 1024**3

# Of what is free after the weights are loaded. The rest is for activations, HTTP and the page cache.
_SHARE_OF_FREE_MEMORY = 0.5
# More cache than this is rarely used by one CPU, whose speed bounds the number of useful sequences.
_MOST_AUTOMATIC_BYTES = 8 * GIB

_BITS = {"int4": 4, "int8": 8, "u8": 8, "bf16": 16, "bfloat16": 16, "f16": 16, "float16": 16, "f32": 32, "float32": 32}
# Scales and zero points, tables for positions, and what the kernels pack beside the weights.
_SCALES_AND_KERNELS = 1.15


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
    """For each model the bytes it may count on besides its weights: equal parts of what all weights leave, None if
    alone.

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


def memory_needs(config: Config) -> MemoryNeeds:
    """What the built-in engine will take for the model of `config`, told from config.json and the sizes of files.

    Nothing for a directory that has only an operator's handler. Raises: ModelError or ConfigError if it cannot be told.
    """
    if not has_model(config):
        return MemoryNeeds(0)
    weights, block_bytes, max_position = _model_size(config, config.model_dir)
    drafts = 0
    if config.speculation.draft_model is not None:
        drafts, more, _ = _model_size(config, config.speculation.draft_model)
        block_bytes += more
    max_model_len = min(config.model.max_model_len or max_position, max_position)
    least, most = (
        block_bytes * choose_num_blocks(
            block_bytes,
            BLOCK_SIZE,
            max_model_len=max_model_len,
            max_num_seqs=config.engine.max_num_seqs,
            kv_cache_gb=config.engine.kv_cache_gb,
            available_bytes=available,
        )
        for available in (0, 2 * _MOST_AUTOMATIC_BYTES)
    )  # fmt: skip
    return MemoryNeeds(weights, drafts, least, most)


def _model_size(config: Config, directory: Path) -> tuple[int, int, int]:
    """Bytes of a model's weights as they will be stored, bytes of one cache block, and its context length."""
    raw = read_json(directory / WEIGHTS_CONFIG)
    shape, options = parse_llama_config(raw), model_options(config)
    stored = _BITS.get(str(raw.get("torch_dtype") or raw.get("dtype")), 16)
    in_files = sum(path.stat().st_size for path in weight_files(directory))
    weights = int(in_files * min(1.0, _BITS[options.weight_type] / stored) * _SCALES_AND_KERNELS)
    kv_bits = _BITS[options.kv_type] if options.kv_type != "auto" else 32 if options.weight_type == "f32" else 16
    values = 2 * shape.num_layers * shape.num_kv_heads * BLOCK_SIZE * (shape.head_size + 8 * (kv_bits == 8))
    return weights, values * kv_bits // 8, shape.max_position


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

    With `kv_cache_gb` exactly what fits into it; otherwise enough for `max_num_seqs` sequences of full length, bounded
    by a share of the available memory, but never less than one sequence of full length.
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
