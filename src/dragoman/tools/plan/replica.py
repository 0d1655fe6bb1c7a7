"""One replica for the simulation: the limits of its engine, and the blocks of its cache."""

from __future__ import annotations

from dataclasses import dataclass, field

from dragoman.engine.base import MemoryNeeds
from dragoman.engine.factory import EngineOptionError, EngineSetup
from dragoman.engine.rolling.blocks.block_manager import CachePool, blocks_for, most_blocks
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.needs import expected_engine, settled_options


@dataclass(frozen=True, slots=True)
class Replica:
    """An engine and its cache. `block_bytes`: per block of each cache kind. `needs`: the uses of its memory."""

    limits: RollingConfig
    pools: tuple[CachePool, ...]
    block_bytes: tuple[int, ...]
    block_size: int
    max_model_len: int
    long_context_from: int | None = None
    needs: MemoryNeeds = field(default_factory=lambda: MemoryNeeds(0))
    vocab_size: int = 2

    @property
    def token_bytes(self) -> float:
        """Cache bytes per token in the layers that keep all tokens."""
        kinds = zip(self.pools, self.block_bytes, strict=True)
        return sum(size / self.block_size for pool, size in kinds if not pool.window)

    @property
    def cache_bytes(self) -> int:
        return sum(pool.num_blocks * size for pool, size in zip(self.pools, self.block_bytes, strict=True))

    def sequence_bytes(self, num_tokens: int) -> int:
        """Cache bytes of a sequence of `num_tokens` tokens."""
        counts = self._blocks_of(num_tokens)
        return sum(count * size for count, size in zip(counts, self.block_bytes, strict=True))

    def num_sequences(self, num_tokens: int) -> int:
        """The number of sequences of `num_tokens` tokens that fit together, at most `max_num_seqs`; 0 = not even one."""
        counts = self._blocks_of(num_tokens)
        fits = [pool.num_blocks // count for pool, count in zip(self.pools, counts, strict=True)]
        return min(*fits, self.limits.max_num_seqs)

    def _blocks_of(self, num_tokens: int) -> list[int]:
        needed = blocks_for(num_tokens, self.block_size)
        return [
            min(needed, most_blocks(pool.window, self.block_size)) if pool.window else needed for pool in self.pools
        ]


def replica_of(setup: EngineSetup, needs: MemoryNeeds, available_bytes: int) -> Replica:
    """The rolling engine's replica on a machine with `available_bytes` of memory.

    Raises: EngineOptionError, also for speculation, which is not simulated; ModelError, OSError.
    """
    options = settled_options(setup)
    if options.speculates:
        name = "speculation" if options.draft_model is None else "draft_model"
        raise EngineOptionError(name, "must not be set: a plan does not simulate speculation")
    engine = expected_engine(setup.model_dir, options, max(available_bytes - needs.weights, 0))
    kinds = zip(engine.num_blocks, engine.shape.windows, strict=True)
    return Replica(
        limits=engine.limits,
        pools=tuple(CachePool(count, window) for count, window in kinds),
        block_bytes=engine.shape.block_bytes,
        block_size=engine.shape.block_size,
        max_model_len=engine.limits.max_model_len or engine.facts.max_position,
        long_context_from=engine.facts.long_context_from,
        needs=needs,
        vocab_size=engine.facts.vocab_size,
    )
