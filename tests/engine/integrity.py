"""The invariants of the rolling engine's books: blocks, queues, loads. Each check raises AssertionError."""

from __future__ import annotations

from dragoman.engine.rolling.blocks.block_manager import BlockManager
from dragoman.engine.rolling.blocks.block_pools import BlockPools
from dragoman.engine.rolling.blocks.eviction import EvictionOrder
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.schedule.scheduler import Scheduler
from dragoman.engine.rolling.sequence import Sequence, SequenceStatus
from dragoman.engine.rolling.stored_prefixes.loading import Loads


def check_core(core: EngineCore) -> None:
    """Scheduler and blocks agree."""
    check_scheduler(core._scheduler)


def check_scheduler(scheduler: Scheduler) -> None:
    """Every live sequence is in one queue, in order, and has the blocks that it needs."""
    check_pools(scheduler._blocks)
    begun = (*scheduler.running, *scheduler.returning)
    if scheduler._has_suspects:
        suspect = scheduler._suspects.current_key
        assert all(sequence.group.key == suspect for sequence in scheduler.running), "a suspect is not alone"
    ranks = [sequence.rank for sequence in begun]
    assert len(set(ranks)) == len(ranks), "a sequence is in a queue twice"
    assert all(sequence.group.has_begun for sequence in begun), "a sequence runs whose request has not begun"
    for queue in (scheduler.running, scheduler.returning):
        in_order = [sequence.rank for sequence in queue]
        assert in_order == sorted(in_order), "the sequences are not in the order of their rank"
    if scheduler._stored is None:  # otherwise loads were overtaken
        able = [sequence.rank for sequence in (*scheduler.running, *scheduler._begun)]
        for priority in {rank[0] for rank in able}:
            peers = [rank for rank in able if rank[0] == priority]
            assert peers == sorted(peers), "the sequences of one priority do not run in the order in which they began"
    else:
        check_loads(scheduler._stored.loads, scheduler._loading)
    fresh = [group.sequences[0] for group in scheduler.queue]
    assert len(fresh) == len(scheduler.queue), "the queue has lost count"
    assert not any(sequence.group.has_begun for sequence in fresh), "a request waits that has begun"
    ids = [sequence.sequence_id for sequence in (*begun, *fresh)]
    assert len(set(ids)) == len(ids), "a sequence is in two queues"
    assert len(scheduler.running) <= scheduler._config.max_num_seqs, "too many sequences run"
    known = [sequence for group in scheduler.groups.values() for sequence in group.live_sequences()]
    started = {sequence.sequence_id for sequence in known if sequence.status is not SequenceStatus.UNFORKED}
    assert started == set(ids), "a live sequence is in no queue, or a dead one in some"
    for sequence in scheduler.running:
        assert sequence.status is SequenceStatus.RUNNING
        is_idle = sequence.num_computed_tokens == sequence.num_tokens
        assert sequence.is_held or not is_idle, "a running sequence has nothing to compute"
        check_tables(scheduler._blocks, sequence.sequence_id, sequence.num_computed_tokens)
    waiting = (*scheduler.returning, *fresh)
    assert all(sequence.num_computed_tokens == 0 for sequence in waiting), "a waiting sequence is computed"


def check_loads(loads: Loads, loading: list[Sequence]) -> None:
    """Every load has a sequence that waits for it, and every sequence in `loading` a load."""
    waiting = [sequence.sequence_id for load in loads._loads for sequence in load.waiting]
    assert len(set(waiting)) == len(waiting), "a sequence waits for two loads"
    assert set(waiting) == set(loads._by_waiting), "a sequence waits for a load that is gone"
    assert all(load.waiting or not load.has_ended for load in loads._loads), "a load holds blocks for nobody"
    assert all(one.sequence_id in waiting for one in loading), "a sequence waits for no load"


def check_pools(pools: BlockPools) -> None:
    """See `check_manager`."""
    for manager in pools.managers:
        check_manager(manager)


def check_tables(pools: BlockPools, sequence_id: int, num_computed: int) -> None:
    """The sequence holds all computed blocks that its next token sees."""
    for manager in pools.managers:
        num_passed = manager.num_passed(sequence_id)
        num_slots = (num_passed + manager.num_held_blocks(sequence_id)) * pools.block_size
        assert num_computed <= num_slots, "more tokens computed than the blocks hold"
        first = manager.first_visible_block(num_computed)
        assert num_passed <= first, "a sequence has passed a block that its next token sees"


def evictable_blocks(order: EvictionOrder) -> set[int]:
    """The blocks without a holder whose content can be found."""
    return {*order._new, *order._proven}


def check_manager(manager: BlockManager) -> None:
    """Every block is held, evictable or free, and tables, counts and the prefix cache agree."""
    counts = [0] * manager.num_blocks
    for table in manager._tables.values():
        assert len(set(table.blocks)) == len(table.blocks), "a table lists a block twice"
        assert table.num_committed <= table.num_passed + len(table.blocks), "more blocks committed than there are"
        for block in table.blocks:
            counts[block] += 1
    assert counts == manager._ref_counts, "reference counts differ from the tables"
    idle = {block for block, count in enumerate(counts) if not count}
    free, evictable = set(manager._free), evictable_blocks(manager._evictable)
    assert len(manager._free) == len(free), "a block is free twice"
    assert not free & evictable, "a block is both free and evictable"
    assert free | evictable == idle, "free blocks differ from those without a holder"
    assert all(manager._digests[block] is None for block in free), "a free block is cached"
    assert all(manager._digests[block] is not None for block in evictable), "an evictable block is not cached"
    named = {digest: block for block, digest in enumerate(manager._digests) if digest is not None}
    assert named == manager._cached, "the prefix cache's two directions differ"
