"""Tokens per gigabyte of key/value cache for models with windows, with block tables of their own for windows and without.

Does: arithmetic on the shapes of published models, by the rules that the engine sizes its cache by. Does not: run or load
anything. From the repository's root:

    python -m benchmarks.window_cache
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from dragoman.engine.rolling.blocks.block_manager import blocks_for, most_blocks
from dragoman.engine.rolling.needs import CacheShape, CacheUse, block_bytes, choose_num_blocks
from dragoman.models import BLOCK_SIZE
from dragoman.models.facts import AttentionFacts, LayerFacts, MlpFacts, ModelFacts

GIB = 1024**3
LENGTHS = (512, 2048, 8192, 32_768, 131_072)
CACHE_GB, NUM_SEQUENCES, BATCH_TOKENS = 8, 64, 512  # the engine's defaults


@dataclass(frozen=True, slots=True)
class Shape:
    """What config.json of a published model says of its cache: every `period`-th layer sees everything."""

    name: str
    num_layers: int
    num_kv_heads: int
    head_size: int
    window: int
    period: int
    max_position: int

    def facts(self) -> ModelFacts:
        """The same as facts; what has nothing to do with the cache is left at 1."""
        layers = []
        for index in range(self.num_layers):
            window = 0 if (index + 1) % self.period == 0 else self.window
            attention = AttentionFacts(1, self.num_kv_heads, self.head_size, self.head_size, 1.0, window)
            layers.append(LayerFacts(attention, MlpFacts(1, "")))
        return ModelFacts(self.name, 1, 1, self.max_position, tuple(layers))


SHAPES = (
    Shape("Gemma 3 1B", 26, 1, 256, 512, 6, 32_768),
    Shape("Gemma 3 4B", 34, 4, 256, 1024, 6, 131_072),
    Shape("Gemma 3 12B", 48, 8, 256, 1024, 6, 131_072),
    Shape("gpt-oss-20b", 24, 8, 64, 128, 2, 131_072),
)


def cache_shape(facts: ModelFacts) -> CacheShape:
    """What the engine's cache is made of, in bf16."""
    return CacheShape(block_bytes(facts, "bf16"), tuple(kind.window for kind in facts.cache_kinds), BLOCK_SIZE)


def sequence_bytes(shape: CacheShape, length: int) -> int:
    """Bytes of the blocks that a sequence of so many tokens holds while it decodes."""
    longest = blocks_for(length, BLOCK_SIZE)
    held = [min(longest, most_blocks(window, BLOCK_SIZE)) if window else longest for window in shape.windows]
    return shape.bytes_of(held)


def main() -> int:
    """Print the tables; the exit code."""
    heads = "".join(f" {length} tokens |" for length in LENGTHS)
    sys.stdout.write(f"Tokens per GB of cache, bf16: keeping everything, then windows alone\n\n| model |{heads}\n")
    sys.stdout.write("|---|" + "---|" * len(LENGTHS) + "\n")
    for one in SHAPES:
        shape = cache_shape(one.facts())
        all_kept = GIB * BLOCK_SIZE / sum(shape.block_bytes)
        cells = []
        for length in LENGTHS:
            tokens = GIB * length / sequence_bytes(shape, length)
            is_possible = length <= one.max_position
            cells.append(f" {all_kept:.0f} -> {tokens:.0f} ({tokens / all_kept:.1f}x) |" if is_possible else " |")
        sys.stdout.write(f"| {one.name} |{''.join(cells)}\n")
    sys.stdout.write(f"\nHow {CACHE_GB} GB are divided for {NUM_SEQUENCES} sequences, in tokens\n\n")
    sys.stdout.write(
        "| model | layers that see everything | layers with a window | keeping everything |\n|---|---|---|---|\n"
    )
    for one in SHAPES:
        shape = cache_shape(one.facts())
        use = CacheUse(one.max_position, NUM_SEQUENCES, BATCH_TOKENS)
        counts = choose_num_blocks(shape, use, kv_cache_gb=CACHE_GB, available_bytes=0)
        full, windowed = (count * BLOCK_SIZE for count in counts)
        all_kept = CACHE_GB * GIB // sum(shape.block_bytes) * BLOCK_SIZE
        sys.stdout.write(f"| {one.name} | {full} | {windowed} | {all_kept} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
