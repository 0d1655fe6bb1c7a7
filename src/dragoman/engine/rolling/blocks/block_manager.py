"""Owns the blocks of one cache kind: tables, reference counts, copy-on-write, and a prefix cache of full blocks.

Called through the block pools, on the engine thread; the runner copies memory. With a window, a table begins with the
first block that the next token sees. Positions and numbers still count from the sequence's beginning.

Invariant: a block with several holders, or one that the prefix cache can find, is never written. Source:
PagedAttention, arXiv:2309.06180, sections 4.3 and 4.4.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from dragoman.engine.rolling.blocks.eviction import EvictionOrder

_DIGEST_BYTES = 16  # 128 bits: a chance collision within 2^40 cached blocks has probability below 2^-48


class _Table:
    """The blocks of one sequence in order of position. `num_committed`: of these, those offered to the prefix cache."""

    __slots__ = ("blocks", "num_committed", "num_passed")

    def __init__(self, blocks: Sequence[int], num_passed: int, num_committed: int) -> None:
        self.blocks = array("i", blocks)
        self.num_passed = num_passed
        self.num_committed = num_committed


def root_digest(salt: str, adapter: str = "", *, is_long: bool = False) -> bytes:
    """The start of the hashes of a sequence's blocks; b"" = nothing sets it apart. No salt can imitate a block's hash."""
    if adapter:
        kind = b"long, adapter" if is_long else b"adapter"
        text = f"{len(salt)} {salt}{adapter}"
        return blake2b(text.encode(), digest_size=_DIGEST_BYTES, person=kind).digest()
    if not salt and not is_long:
        return b""
    kind = b"long, cache salt" if is_long else b"cache salt"
    return blake2b(salt.encode(), digest_size=_DIGEST_BYTES, person=kind).digest()


def extend_digests(
    digests: list[bytes],
    token_ids: array[int],
    block_size: int,
    num_blocks: int,
    root: bytes = b"",
    keys: Mapping[int, bytes] | None = None,
) -> None:
    """Extend `digests` to the chained hashes of the first `num_blocks` full blocks of `token_ids`, from `root` on.

    `keys`: by block index, the content of blocks that their tokens do not identify.
    """
    digest = digests[-1] if digests else root
    for index in range(len(digests), num_blocks):
        tokens = token_ids[index * block_size : (index + 1) * block_size].tobytes()
        key = _short(keys.get(index, b"")) if keys else b""
        digest = blake2b(digest + tokens, digest_size=_DIGEST_BYTES, key=key).digest()
        digests.append(digest)


def _short(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_BYTES).digest() if key else b""


class BlockManager:
    """Hands out `num_blocks` blocks of `block_size` slots to sequences, which have integer ids.

    `window`: the tokens that a token sees, including itself; 0 = all.
    """

    def __init__(self, num_blocks: int, block_size: int, window: int = 0) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks={num_blocks} and block_size={block_size} must both be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.window = window
        self._tables: dict[int, _Table] = {}
        self._ref_counts = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # without holder or cached content; a stack
        self._evictable = EvictionOrder(num_blocks)  # without holder, but with cached content
        self._digests: list[bytes | None] = [None] * num_blocks
        self._cached: dict[bytes, int] = {}  # digest -> the block with the end of this prefix
        self._copies: dict[int, int] = {}  # destination -> source
        self.on_cached: Callable[[bytes], None] | None = None
        # Called with an evicted block, whose content stays until the next forward, or until a copy overwrites it.
        self.on_evicted: Callable[[int, bytes], None] | None = None

    # --- what is there ------------------------------------------------------------------------------------------------

    @property
    def num_free_blocks(self) -> int:
        """Blocks without a holder, including cached ones, which are evicted on demand."""
        return len(self._free) + len(self._evictable)

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - self.num_free_blocks

    def table(self, sequence_id: int) -> array[int]:
        """The sequence's blocks in order of position, without passed ones; read only, until its next allocation."""
        return self._tables[sequence_id].blocks

    def num_passed(self, sequence_id: int) -> int:
        return self._tables[sequence_id].num_passed

    def first_visible_block(self, position: int) -> int:
        return first_visible_block(position, self.window, self.block_size)

    def match_length(
        self, digests: Sequence[bytes], limit: int, is_elsewhere: Callable[[bytes], bool] | None = None
    ) -> int:
        """The length in blocks of the longest prefix of `digests`, at most `limit`, that the cache can continue.

        With a window only the blocks that the next token sees must be cached. `is_elsewhere`: an uncached block counts
        as well.
        """
        cached = self._cached

        def is_missing(index: int) -> bool:
            digest = digests[index]
            return digest not in cached and (is_elsewhere is None or not is_elsewhere(digest))

        if not self.window:
            return next((index for index in range(limit) if is_missing(index)), limit)
        length = limit
        while length:
            first = self.first_visible_block(length * self.block_size)
            # The last missing block: no prefix that includes it in its window is usable.
            missing = next((index for index in range(length - 1, first - 1, -1) if is_missing(index)), None)
            if missing is None:
                break
            length = missing
        return length

    def cached_block(self, digest: bytes) -> int | None:
        return self._cached.get(digest)

    def cached_contents(self) -> list[bytes]:
        return list(self._cached)

    def cached_blocks(self, digests: Sequence[bytes], length: int) -> list[int]:
        """The visible blocks of a prefix of `length` blocks, from `match_length`. They are not held yet."""
        return [self._cached[digest] for digest in digests[self.first_visible_block(length * self.block_size) : length]]

    def held_blocks(self, sequence_id: int, length: int) -> list[int] | None:
        table, first = self._tables[sequence_id], self.first_visible_block(length * self.block_size)
        if table.num_passed > first:
            return None
        return table.blocks[first - table.num_passed : length - table.num_passed].tolist()

    def num_spare_blocks(self, num_tokens: int, prefix: Sequence[int] = (), num_passed: int = 0) -> int:
        """The free blocks that `allocate` would leave; negative if it would fail."""
        num_revived = sum(1 for block in prefix if not self._ref_counts[block])
        num_new = blocks_for(num_tokens, self.block_size) - num_passed - len(prefix)
        return self.num_free_blocks - num_new - num_revived

    def num_missing_blocks(self, sequence_id: int, begin: int, end: int) -> int:
        table = self._tables[sequence_id]
        return max(self._num_new(table, end), 0) + len(self._shared(table, begin, end))

    def num_held_blocks(self, sequence_id: int) -> int:
        return len(self._tables[sequence_id].blocks)

    def num_own_blocks(self, sequence_id: int) -> int:
        """Blocks in the sequence's table without other holders: those that `free` would make free."""
        return sum([self._ref_counts[block] == 1 for block in self._tables[sequence_id].blocks])

    # --- taking and giving back ---------------------------------------------------------------------------------------

    def allocate(self, sequence_id: int, num_tokens: int, prefix: Sequence[int] = (), num_passed: int = 0) -> None:
        """Give the sequence a table for `num_tokens` tokens: `num_passed` blocks left out, then `prefix`, then new
        ones.

        Raises: ValueError if the sequence has a table or there are too few free blocks.
        """
        if sequence_id in self._tables:
            raise ValueError(f"sequence_id {sequence_id} already has a table")
        if self.num_spare_blocks(num_tokens, prefix, num_passed) < 0:
            raise ValueError(f"num_tokens {num_tokens} needs more than the {self.num_free_blocks} free blocks")
        for block in prefix:  # before any block is taken, or one of these could be evicted
            self._hold(block)
        num_known = num_passed + len(prefix)
        num_new = blocks_for(num_tokens, self.block_size) - num_known
        self._tables[sequence_id] = _Table([*prefix, *(self._take() for _ in range(num_new))], num_passed, num_known)

    def append(self, sequence_id: int, begin: int, end: int) -> bool:
        """Make the slots of positions [begin, end) writable by this sequence alone; False, and no change, if blocks
        lack.

        A shared block is replaced by a new one, and the copy noted for `take_copies`.
        """
        table = self._tables[sequence_id]
        blocks, size = table.blocks, self.block_size
        first = begin // size
        if end <= (first + 1) * size:  # nearly every decode step: one slot of an unshared block
            index = first - table.num_passed
            if index < len(blocks) and self._ref_counts[blocks[index]] == 1:
                return True
        num_new, shared = self._num_new(table, end), self._shared(table, begin, end)
        if max(num_new, 0) + len(shared) > self.num_free_blocks:
            return False
        for index in shared:
            self._copy_on_write(blocks, index)
        for _ in range(num_new):
            blocks.append(self._take())
        return True

    def can_allocate_visible(self, digests: Sequence[bytes], length: int) -> bool:
        num_taken = 0
        for digest in digests[self.first_visible_block(length * self.block_size) : length]:
            block = self._cached.get(digest)
            num_taken += block is None or not self._ref_counts[block]
        return num_taken <= self.num_free_blocks

    def allocate_visible(self, sequence_id: int, digests: Sequence[bytes], length: int) -> list[tuple[bytes, int]]:
        """Give the sequence a table of the blocks that the token after a prefix of `length` blocks sees.

        Missing blocks are new, and returned with their intended content. Raises: ValueError unless
        `can_allocate_visible`.
        """
        if sequence_id in self._tables or not self.can_allocate_visible(digests, length):
            raise ValueError(f"sequence_id {sequence_id} has a table, or too few blocks are free")
        first = self.first_visible_block(length * self.block_size)
        found = [self._cached.get(digest) for digest in digests[first:length]]
        for block in found:  # before any block is taken, or one of these could be evicted
            if block is not None:
                self._hold(block)
        blocks = [self._take() if block is None else block for block in found]
        self._tables[sequence_id] = _Table(blocks, first, first)
        return [(digests[first + i], blocks[i]) for i, block in enumerate(found) if block is None]

    def adopt(self, block: int, digest: bytes) -> None:
        """Add a held block with this new content to the prefix cache, unless another block has it."""
        if self._digests[block] is None and digest not in self._cached:
            self._cache(block, digest)

    def pass_blocks(self, sequence_id: int, position: int) -> None:
        """Drop the blocks that no token from `position` on sees; freed as by `free`."""
        table = self._tables[sequence_id]
        num_dropped = self.first_visible_block(position) - table.num_passed
        if num_dropped > 0:
            dropped = table.blocks[:num_dropped]
            del table.blocks[:num_dropped]
            table.num_passed += num_dropped
            self._release(dropped)

    def fork(self, parent_id: int, child_id: int) -> None:
        parent = self._tables[parent_id]
        if child_id in self._tables:
            raise ValueError(f"sequence_id {child_id} already has a table")
        for block in parent.blocks:
            self._ref_counts[block] += 1
        self._tables[child_id] = _Table(parent.blocks, parent.num_passed, parent.num_committed)

    def free(self, sequence_id: int) -> None:
        """Drop the sequence's table; blocks without another holder become free, or evictable if they are cached."""
        self._release(self._tables.pop(sequence_id).blocks)

    def truncate(self, sequence_id: int, length: int) -> None:
        table = self._tables[sequence_id]
        num_kept = max(length - table.num_passed, 0)
        dropped = table.blocks[num_kept:]
        del table.blocks[num_kept:]
        table.num_committed = min(table.num_committed, length)
        table.num_passed = min(table.num_passed, length)
        self._release(dropped)

    def commit(self, sequence_id: int, digests: Sequence[bytes]) -> None:
        """Add the sequence's first len(digests) blocks to the prefix cache: they are full and computed."""
        table = self._tables[sequence_id]
        blocks, num_passed = table.blocks, table.num_passed
        for index in range(max(table.num_committed, num_passed), len(digests)):
            block, digest = blocks[index - num_passed], digests[index]
            # Another block may have cached the same prefix already; it stays, and ours is freed with its sequence.
            if self._digests[block] is None and digest not in self._cached:
                self._cache(block, digest)
        table.num_committed = max(table.num_committed, len(digests))

    def take_copies(self) -> list[tuple[int, int]]:
        """The (source, destination) block copies to run before the next forward; the list is cleared."""
        if not self._copies:
            return []
        pairs = [(source, destination) for destination, source in self._copies.items()]
        self._copies.clear()
        return pairs

    # --- inside -------------------------------------------------------------------------------------------------------

    def _num_new(self, table: _Table, end: int) -> int:
        return blocks_for(end, self.block_size) - table.num_passed - len(table.blocks)

    def _shared(self, table: _Table, begin: int, end: int) -> list[int]:
        """The indices in the table of shared blocks with positions in [begin, end)."""
        first = begin // self.block_size - table.num_passed
        last = min(blocks_for(end, self.block_size) - table.num_passed, len(table.blocks))
        return [index for index in range(first, last) if self._ref_counts[table.blocks[index]] > 1]

    def _cache(self, block: int, digest: bytes) -> None:
        self._digests[block] = digest
        self._cached[digest] = block
        if self.on_cached is not None:
            self.on_cached(digest)

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
        if self._free:
            block = self._free.pop()
        else:
            block = self._evictable.pop()
            digest = self._digests[block]
            assert digest is not None
            del self._cached[digest]
            self._digests[block] = None
            if self.on_evicted is not None:
                self.on_evicted(block, digest)
        self._ref_counts[block] = 1
        return block

    def _copy_on_write(self, blocks: array[int], index: int) -> None:
        source = blocks[index]
        self._ref_counts[source] -= 1
        blocks[index] = self._take()
        self._copies[blocks[index]] = source


# --- how many blocks a sequence needs ---------------------------------------------------------------------------------

MIN_CHUNK = 4
"""The fewest tokens that let every prompt be cut without a chunk or a remainder of one token."""


@dataclass(frozen=True, slots=True)
class CachePool:
    """The blocks of the layers in which a token sees `window` tokens, including itself; 0 = all."""

    num_blocks: int
    window: int = 0


def first_visible_block(position: int, window: int, block_size: int) -> int:
    """The first block that the token at `position` sees, counted from the sequence's beginning."""
    return max(position - window + 1, 0) // block_size if window else 0


def blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def most_blocks(window: int, block_size: int) -> int:
    """The most blocks that a window of tokens can touch: the bound of a decoding sequence."""
    return (window + block_size - 2) // block_size + 1


def chunk_blocks(pool: CachePool, block_size: int, max_batch_tokens: int) -> int:
    """The blocks of a pool with a window for pieces of prompts, beside the windows of running sequences.

    At most half of what one window leaves. 0 if that is too little for any piece: the pool must hold all of a sequence.
    """
    num_left = pool.num_blocks - most_blocks(pool.window, block_size)
    least = blocks_for(MIN_CHUNK - 1, block_size)
    if num_left < least:
        return 0
    return max(min(blocks_for(max_batch_tokens - 1, block_size), num_left // 2), least)


def longest_chunk(pool: CachePool, block_size: int, max_batch_tokens: int) -> int:
    """The most tokens of one sequence in a step for which the pool's `chunk_blocks` suffice."""
    num_blocks = chunk_blocks(pool, block_size, max_batch_tokens) if pool.window else 0
    return min(num_blocks * block_size + 1, max_batch_tokens) if num_blocks else max_batch_tokens


def longest_sequence(pool: CachePool, block_size: int) -> int | None:
    """The tokens of the longest sequence that can run in the pool; None = any length."""
    if pool.window and chunk_blocks(pool, block_size, MIN_CHUNK):
        return None
    return pool.num_blocks * block_size
