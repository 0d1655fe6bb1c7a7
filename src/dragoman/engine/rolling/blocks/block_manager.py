"""Owns the KV cache's blocks: who holds which, what they contain, which to reuse next.

Does: block tables, reference counts, copy-on-write, and a prefix cache of full blocks found by chained hashes. Does not:
touch the cache's memory (the runner copies), know requests, decide who gets blocks or what is evicted (`eviction` does).
Called by the scheduler, on the engine thread only.

Invariant: a block with more than one holder, or one that the prefix cache can find, is never written.
Source: PagedAttention, arXiv:2309.06180, sections 4.3 and 4.4.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from dragoman.engine.rolling.blocks.eviction import EvictionOrder

_DIGEST_BYTES = 16  # 128 bits: a chance collision within 2^40 cached blocks has probability below 2^-48


class _Table:
    """The blocks of one sequence in order of position, and how many of them were offered to the prefix cache."""

    __slots__ = ("blocks", "num_committed")

    def __init__(self, blocks: Sequence[int], num_committed: int) -> None:
        self.blocks = array("i", blocks)
        self.num_committed = num_committed


def root_digest(salt: str) -> bytes:
    """What the hashes of a sequence's blocks start from, so that sequences of different salts never share one.

    It is a hash of another kind than those of blocks: no choice of a salt makes it one of theirs.
    """
    return blake2b(salt.encode(), digest_size=_DIGEST_BYTES, person=b"cache salt").digest()


def extend_digests(
    digests: list[bytes], token_ids: array[int], block_size: int, num_blocks: int, root: bytes = b""
) -> None:
    """Grow `digests` to the chained hashes of the first `num_blocks` full blocks of `token_ids`, beginning with `root`.

    Each hash covers the block's tokens and the hash before it, so that it names the whole prefix.
    """
    digest = digests[-1] if digests else root
    for index in range(len(digests), num_blocks):
        tokens = token_ids[index * block_size : (index + 1) * block_size].tobytes()
        digest = blake2b(digest + tokens, digest_size=_DIGEST_BYTES).digest()
        digests.append(digest)


class BlockManager:
    """Hands out `num_blocks` blocks of `block_size` slots to sequences, known here by an integer id."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks={num_blocks} and block_size={block_size} must both be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._tables: dict[int, _Table] = {}
        self._ref_counts = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # no holder, no content worth keeping; a stack
        self._evictable = EvictionOrder(num_blocks)  # no holder, but cached content
        self._digests: list[bytes | None] = [None] * num_blocks
        self._cached: dict[bytes, int] = {}  # digest -> the block that holds this prefix's last block
        self._copies: dict[int, int] = {}  # destination -> source

    # --- what is there ------------------------------------------------------------------------------------------------

    @property
    def num_free_blocks(self) -> int:
        """Blocks without a holder; those with cached content count, they are evicted on demand."""
        return len(self._free) + len(self._evictable)

    @property
    def num_used_blocks(self) -> int:
        """Blocks held by sequences, shared ones counted once."""
        return self.num_blocks - self.num_free_blocks

    @property
    def usage(self) -> float:
        """The held part of the cache, 0 to 1."""
        return self.num_used_blocks / self.num_blocks

    def table(self, sequence_id: int) -> array[int]:
        """The sequence's blocks in order of position; not to be changed, valid until its next allocation."""
        return self._tables[sequence_id].blocks

    def match_prefix(self, digests: Sequence[bytes]) -> list[int]:
        """The cached blocks of the longest prefix named by `digests`; nothing is taken yet."""
        blocks: list[int] = []
        for digest in digests:
            block = self._cached.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_spare_blocks(self, num_tokens: int, prefix: Sequence[int] = ()) -> int:
        """The free blocks that `allocate(…, num_tokens, prefix)` would leave; negative if it would fail."""
        num_revived = sum(1 for block in prefix if not self._ref_counts[block])
        return self.num_free_blocks - (self._blocks_for(num_tokens) - len(prefix) + num_revived)

    def num_held_blocks(self, sequence_id: int) -> int:
        """Blocks in the sequence's table."""
        return len(self._tables[sequence_id].blocks)

    def num_own_blocks(self, sequence_id: int) -> int:
        """Blocks of the sequence's table that nobody else holds: those that `free` makes free."""
        return sum([self._ref_counts[block] == 1 for block in self._tables[sequence_id].blocks])

    # --- taking and giving back ---------------------------------------------------------------------------------------

    def allocate(self, sequence_id: int, num_tokens: int, prefix: Sequence[int] = ()) -> None:
        """Give the sequence a table for `num_tokens` tokens whose first blocks are `prefix`, from `match_prefix`.

        Raises: ValueError if the sequence has a table or the blocks do not suffice (see `num_spare_blocks`).
        """
        if sequence_id in self._tables:
            raise ValueError(f"sequence_id {sequence_id} already has a table")
        if self.num_spare_blocks(num_tokens, prefix) < 0:
            raise ValueError(f"num_tokens {num_tokens} needs more than the {self.num_free_blocks} free blocks")
        for block in prefix:  # before any block is taken, or an eviction could take one of these
            self._hold(block)
        num_new = self._blocks_for(num_tokens) - len(prefix)
        self._tables[sequence_id] = _Table([*prefix, *(self._take() for _ in range(num_new))], len(prefix))

    def append(self, sequence_id: int, begin: int, end: int) -> bool:
        """Make the slots of positions [begin, end) writable by this sequence alone; False if blocks do not suffice.

        A shared block is replaced by a fresh one and the copy noted for `take_copies`. On False nothing has changed.
        """
        blocks = self._tables[sequence_id].blocks
        num_missing = self._blocks_for(end) - len(blocks)
        first = begin // self.block_size
        if num_missing <= 0 and self._ref_counts[blocks[first]] == 1 and end <= (first + 1) * self.block_size:
            return True  # nearly every decode step: one slot of one own block
        last = min(self._blocks_for(end), len(blocks))
        shared = [index for index in range(first, last) if self._ref_counts[blocks[index]] > 1]
        if max(num_missing, 0) + len(shared) > self.num_free_blocks:
            return False
        for index in shared:
            self._copy_on_write(blocks, index)
        for _ in range(num_missing):
            blocks.append(self._take())
        return True

    def fork(self, parent_id: int, child_id: int) -> None:
        """Let `child_id` share all blocks of `parent_id`; a later write copies first.

        Raises: KeyError if the parent has no table; ValueError if the child has one.
        """
        parent = self._tables[parent_id]
        if child_id in self._tables:
            raise ValueError(f"sequence_id {child_id} already has a table")
        for block in parent.blocks:
            self._ref_counts[block] += 1
        self._tables[child_id] = _Table(parent.blocks, parent.num_committed)

    def free(self, sequence_id: int) -> None:
        """Drop the sequence's table; blocks without another holder become free, or evictable if they are cached."""
        self._release(self._tables.pop(sequence_id).blocks)

    def truncate(self, sequence_id: int, num_blocks: int) -> None:
        """Drop the blocks behind the first `num_blocks` of the sequence's table, as `free` does."""
        table = self._tables[sequence_id]
        dropped = table.blocks[num_blocks:]
        del table.blocks[num_blocks:]
        table.num_committed = min(table.num_committed, num_blocks)
        self._release(dropped)

    def commit(self, sequence_id: int, digests: Sequence[bytes]) -> None:
        """Let the prefix cache find the sequence's first len(digests) blocks: they are full and were computed."""
        table = self._tables[sequence_id]
        for index in range(table.num_committed, len(digests)):
            block = table.blocks[index]
            # A twin may have cached the same prefix already; the first stays, ours is freed with its sequence.
            if self._digests[block] is None and digests[index] not in self._cached:
                self._digests[block] = digests[index]
                self._cached[digests[index]] = block
        table.num_committed = max(table.num_committed, len(digests))

    def take_copies(self) -> list[tuple[int, int]]:
        """The (source, destination) block copies to run before the next forward; forgets them."""
        if not self._copies:
            return []
        pairs = [(source, destination) for destination, source in self._copies.items()]
        self._copies.clear()
        return pairs

    # --- inside -------------------------------------------------------------------------------------------------------

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _hold(self, block: int) -> None:
        if not self._ref_counts[block]:
            self._evictable.remove(block)
        self._ref_counts[block] += 1

    def _release(self, blocks: array[int]) -> None:
        evictable: list[int] = []
        contents: list[bytes] = []
        for block in reversed(blocks):
            self._ref_counts[block] -= 1
            if self._ref_counts[block]:
                continue
            digest = self._digests[block]
            if digest is None:
                self._free.append(block)
            else:
                evictable.append(block)
                contents.append(digest)
        if evictable:
            self._evictable.add(evictable, contents)

    def _take(self) -> int:
        """A block of our own; evicts a cached block if no other is free."""
        if self._free:
            block = self._free.pop()
        else:
            block = self._evictable.pop()
            digest = self._digests[block]
            assert digest is not None
            del self._cached[digest]
            self._digests[block] = None
        self._ref_counts[block] = 1
        return block

    def _copy_on_write(self, blocks: array[int], index: int) -> None:
        source = blocks[index]
        self._ref_counts[source] -= 1
        blocks[index] = self._take()
        self._copies[blocks[index]] = source

    def check_integrity(self) -> None:
        """Raises AssertionError if the books do not balance; for tests, after every step."""
        counts = [0] * self.num_blocks
        for table in self._tables.values():
            assert len(set(table.blocks)) == len(table.blocks), "a table lists a block twice"
            assert table.num_committed <= len(table.blocks), "more blocks committed than held"
            for block in table.blocks:
                counts[block] += 1
        assert counts == self._ref_counts, "reference counts differ from the tables"
        idle = {block for block, count in enumerate(counts) if not count}
        assert len(self._free) == len(set(self._free)), "a block is free twice"
        evictable = self._evictable.blocks()
        assert not set(self._free) & evictable, "a block is both free and evictable"
        assert set(self._free) | evictable == idle, "free blocks differ from those without a holder"
        assert all(self._digests[block] is None for block in self._free), "a free block is cached"
        assert all(self._digests[block] is not None for block in evictable), "an evictable block is not cached"
        named = {digest: block for block, digest in enumerate(self._digests) if digest is not None}
        assert named == self._cached, "the prefix cache's two directions differ"
