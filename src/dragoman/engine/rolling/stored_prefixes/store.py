"""The interfaces of this package: to blocks on disk, and to blocks in memory; and the blocks' names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dragoman.engine.rolling.blocks.block_manager import CachePool

Bytes = npt.NDArray[np.uint8]

_KEY_BYTES = 16


class BlockStore(Protocol):
    """Blocks on disk by keys of 16 bytes. Thread-safe; a block that cannot be read or written counts as missing."""

    def __contains__(self, key: bytes) -> bool:
        """True if the block is there, as far as known without disk access."""
        ...

    def fetch(self, keys: Sequence[bytes]) -> None:
        """Fetch blocks from the disk, and wait for them, before they are read."""
        ...

    def read(self, keys: Sequence[bytes], into: Sequence[Sequence[Any]]) -> int:
        """Fill each block's memory; returns the number of first blocks that are complete, the rest is undefined."""
        ...

    def write(
        self,
        key: bytes,
        content: Any,
        *,
        keep_until: float | None = None,
        group: bytes = b"",
        label: str = "",
        namespace: bytes = b"",
    ) -> bool:
        """Write a block, and keep it until `keep_until` while its group has room; False on failure."""
        ...

    def touch(self, keys: Sequence[bytes], keep_until: float | None = None, group: bytes = b"") -> None: ...

    def refresh(self) -> None: ...

    def close(self) -> None: ...


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


class BlockNames:
    def __init__(self, model: StoredModel, memory: BlockMemory) -> None:
        self._most = 4 * sum(pool.num_blocks for pool in memory.pools)
        whole = blake2b(model.identity.encode()).digest()
        self._spaces = [
            blake2b(f"{kind} {pool.window} {size}".encode(), key=whole, digest_size=32).digest()
            for kind, (pool, size) in enumerate(zip(memory.pools, memory.block_bytes, strict=True))
        ]
        self._keys: dict[tuple[int, bytes], bytes] = {}

    def key(self, kind: int, digest: bytes) -> bytes:
        """The name of a block of a kind. On the engine thread."""
        key = self._keys.get((kind, digest))
        if key is None:
            if len(self._keys) >= self._most:
                self._keys.clear()
            key = blake2b(digest, key=self._spaces[kind], digest_size=_KEY_BYTES).digest()
            self._keys[kind, digest] = key
        return key
