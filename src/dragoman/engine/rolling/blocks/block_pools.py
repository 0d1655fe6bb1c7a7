"""The blocks of all cache kinds of a model: one block manager each, used together. On the engine thread.

Layers with a window only need what the next token sees. So a prefix can be reused if the first kind has all its blocks,
and the others those of the window before its end.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from dragoman.engine.rolling.blocks.block_manager import BlockManager, CachePool

Copies = list[tuple[int, list[tuple[int, int]]]]
"""For each kind with copies: its number, and the (source, destination) blocks."""


class Prefix(NamedTuple):
    """The first `length` blocks of a sequence, which are computed. `blocks`: for each kind the visible ones at the end."""

    length: int
    blocks: tuple[list[int], ...]


class FreshBlock(NamedTuple):
    """A held block of a kind that is to get the content of `digest`."""

    kind: int
    block: int
    digest: bytes


class BlockPools:
    """One block manager for each of `pools`, in order; sequences have integer ids."""

    def __init__(self, pools: Sequence[CachePool], block_size: int) -> None:
        self.pools = tuple(pools)
        self.managers = tuple(BlockManager(pool.num_blocks, block_size, pool.window) for pool in pools)
        self.block_size = block_size
        self.no_prefix = Prefix(0, tuple([] for _ in pools))
        self.have_windows = any(pool.window for pool in pools)
        # (sequence_id, begin, end) -> bool, see `BlockManager.append`. Bound once: every row of every step calls it.
        self.append: Callable[[int, int, int], bool] = (
            self.managers[0].append if len(self.managers) == 1 else self._append_to_all
        )

    # --- what is there ------------------------------------------------------------------------------------------------

    @property
    def num_used_blocks(self) -> int:
        return sum([manager.num_used_blocks for manager in self.managers])

    @property
    def num_free_blocks(self) -> int:
        return min([manager.num_free_blocks for manager in self.managers])

    def table(self, sequence_id: int, kind: int = 0) -> array[int]:
        return self.managers[kind].table(sequence_id)

    def match_prefix(self, digests: Sequence[bytes], shared: Prefix) -> Prefix:
        """The longest prefix of `digests` that the caches can continue, or `shared` if that is longer; not held yet."""
        length = self._match_length(digests, len(digests))
        if length <= shared.length:
            return shared
        blocks = [manager.cached_blocks(digests, length) for manager in self.managers]
        if not self.managers[0].window:
            blocks[0][: shared.length] = shared.blocks[0]
        return Prefix(length, tuple(blocks))

    def match_with(self, digests: Sequence[bytes], is_elsewhere: Callable[[int, bytes], bool]) -> int:
        """The length in blocks of the longest prefix with further blocks from elsewhere, by kind and digest."""
        return self._match_length(digests, len(digests), is_elsewhere)

    def _match_length(
        self, digests: Sequence[bytes], limit: int, is_elsewhere: Callable[[int, bytes], bool] | None = None
    ) -> int:
        found = [None if is_elsewhere is None else partial(is_elsewhere, kind) for kind in range(len(self.managers))]
        length, before = self.managers[0].match_length(digests, limit, found[0]), -1
        while self.have_windows and length != before:  # another kind's window may need a block that this one does not
            before = length
            for manager, is_found in zip(self.managers, found, strict=True):
                if manager.window:
                    length = manager.match_length(digests, length, is_found)
        return length

    def shared_prefix(self, sequence_id: int, length: int) -> Prefix:
        """The sequence's first `length` blocks, for other sequences to start from; empty if a window has passed some."""
        blocks = [manager.held_blocks(sequence_id, length) for manager in self.managers]
        held = [kept for kept in blocks if kept is not None]
        return Prefix(length, tuple(held)) if len(held) == len(blocks) else self.no_prefix

    # --- taking and giving back ---------------------------------------------------------------------------------------

    def num_spare_blocks(self, num_tokens: int, prefix: Prefix, end: int) -> list[int]:
        """For each kind, the free blocks that `allocate` would leave; negative: it fails."""
        return [
            manager.num_spare_blocks(end if manager.window else num_tokens, blocks, prefix.length - len(blocks))
            for manager, blocks in zip(self.managers, prefix.blocks, strict=True)
        ]

    def allocate(self, sequence_id: int, num_tokens: int, prefix: Prefix, end: int) -> None:
        """Give the sequence tables that begin with `prefix`: for all its tokens, or with a window for those up to
        `end`.
        """
        for manager, blocks in zip(self.managers, prefix.blocks, strict=True):
            wanted = end if manager.window else num_tokens
            manager.allocate(sequence_id, wanted, blocks, prefix.length - len(blocks))

    def allocate_visible(self, sequence_id: int, digests: Sequence[bytes], length: int) -> list[FreshBlock] | None:
        """Give the sequence tables of what the token after `length` blocks sees; returns the uncached blocks.

        The caller fills these, and then calls `adopt`. None, and no change, if there are too few free blocks.
        """
        if not all(manager.can_allocate_visible(digests, length) for manager in self.managers):
            return None
        return [
            FreshBlock(kind, block, digest)
            for kind, manager in enumerate(self.managers)
            for digest, block in manager.allocate_visible(sequence_id, digests, length)
        ]

    def adopt(self, fresh: FreshBlock) -> None:
        self.managers[fresh.kind].adopt(fresh.block, fresh.digest)

    def _append_to_all(self, sequence_id: int, begin: int, end: int) -> bool:
        for manager in self.managers:
            if manager.num_missing_blocks(sequence_id, begin, end) > manager.num_free_blocks:
                return False
        for manager in self.managers:
            manager.append(sequence_id, begin, end)
        return True

    def pass_blocks(self, sequence_id: int, position: int) -> None:
        for manager in self.managers:
            if manager.window:
                manager.pass_blocks(sequence_id, position)

    def fork(self, parent_id: int, child_id: int) -> None:
        for manager in self.managers:
            manager.fork(parent_id, child_id)

    def free(self, sequence_id: int) -> None:
        for manager in self.managers:
            manager.free(sequence_id)

    def truncate(self, sequence_id: int, length: int) -> int:
        """Drop all but the sequence's first `length` blocks, or all if a window has passed what the next token sees.

        Returns the number of blocks left.
        """
        if any(manager.held_blocks(sequence_id, length) is None for manager in self.managers):
            length = 0
        for manager in self.managers:
            manager.truncate(sequence_id, length)
        return length

    def commit(self, sequence_id: int, digests: Sequence[bytes]) -> None:
        for manager in self.managers:
            manager.commit(sequence_id, digests)

    def take_copies(self) -> Copies:
        return [(kind, pairs) for kind, manager in enumerate(self.managers) if (pairs := manager.take_copies())]
