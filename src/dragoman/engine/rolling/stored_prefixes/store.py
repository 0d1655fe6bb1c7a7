"""The interfaces of this package: to blocks on disk, and to blocks in memory; and the blocks' names."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dragoman.engine.rolling.blocks.block_manager import CachePool
from dragoman.prefix_store import BlockStore

Bytes = npt.NDArray[np.uint8]

_KEY_BYTES = 16


class BlockMemory(Protocol):
    """The cache's memory. `has_states`: for each kind, whether a block holds one state instead of values per token."""

    pools: tuple[CachePool, ...]
    block_bytes: tuple[int, ...]
    has_states: tuple[bool, ...]

    def block_parts(self, block: int, kind: int = 0) -> list[Bytes]:
        """The memory of a block in every layer; on any thread, until the runner is closed."""
        ...


@dataclass(frozen=True, slots=True)
class StoredModel:
    """The model of the blocks. `identity`: everything that affects the cache's numbers besides what a digest covers."""

    identity: str
    name: str = ""

    @property
    def namespace(self) -> bytes:
        """A prefix of keys that separates the models of a store."""
        return blake2b(self.identity.encode(), digest_size=_KEY_BYTES).digest()


class Stored(NamedTuple):
    """An open store, and the model whose blocks go there."""

    store: BlockStore
    model: StoredModel


class Storage:
    """An engine's store, the memory of its cache, and the names of its blocks. Names are for the engine thread."""

    def __init__(self, store: BlockStore, memory: BlockMemory, model: StoredModel) -> None:
        self.store = store
        self.memory = memory
        self.model = model
        self._most = 4 * sum(pool.num_blocks for pool in memory.pools)
        whole = blake2b(model.identity.encode()).digest()
        self._spaces = [
            blake2b(f"{kind} {pool.window} {size}".encode(), key=whole, digest_size=32).digest()
            for kind, (pool, size) in enumerate(zip(memory.pools, memory.block_bytes, strict=True))
        ]
        self._keys: dict[tuple[int, bytes], bytes] = {}

    def key(self, kind: int, digest: bytes) -> bytes:
        """The name of a block of a kind."""
        key = self._keys.get((kind, digest))
        if key is None:
            if len(self._keys) >= self._most:
                self._keys.clear()
            key = blake2b(digest, key=self._spaces[kind], digest_size=_KEY_BYTES).digest()
            self._keys[kind, digest] = key
        return key

    def holds(self, kind: int, digest: bytes) -> bool:
        """True if the block is on disk."""
        return self.key(kind, digest) in self.store
