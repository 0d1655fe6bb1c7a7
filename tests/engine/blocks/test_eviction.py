"""Which cached content gives way: what was used once before what came back, and of that what comes back the least often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.engine.rolling.blocks.block_manager import BlockManager
from dragoman.engine.rolling.blocks.eviction import EvictionOrder
from tests.engine.integrity import check_manager, evictable_blocks


def content(name: int) -> bytes:
    return name.to_bytes(4, "big")


def use(manager: BlockManager, sequence_id: int, names: list[int]) -> int:
    """A sequence of one block per name comes and goes; how many of its blocks were cached."""
    digests = [content(name) for name in names]
    prefix = manager.cached_blocks(digests, manager.match_length(digests, len(digests)))
    manager.allocate(sequence_id, len(names), prefix)
    manager.commit(sequence_id, digests)
    manager.free(sequence_id)
    check_manager(manager)
    return len(prefix)


def test_single_prompts_do_not_drive_out_a_shared_prefix() -> None:
    manager = BlockManager(num_blocks=12, block_size=1)
    shared = [1, 2, 3, 4]
    use(manager, 0, shared)
    assert use(manager, 1, shared) == 4
    for number in range(10):
        use(manager, 2 + number, [100 + 10 * number + index for index in range(8)])
    assert use(manager, 99, shared) == 4


def test_a_shared_prefix_that_nobody_wants_any_more_gives_way_to_new_ones() -> None:
    manager = BlockManager(num_blocks=8, block_size=1)
    for sequence_id in range(3):
        use(manager, sequence_id, [1, 2, 3, 4, 5, 6])
    for number in range(12):
        use(manager, 10 + number, [20, 21, 22, 23, 24, 25])
    assert use(manager, 98, [20, 21, 22, 23, 24, 25]) == 6
    assert manager.match_length([content(name) for name in (1, 2, 3, 4, 5, 6)], 6) <= 2


@pytest.mark.parametrize("num_prefixes", [3, 5, 8])
def test_prefixes_in_turn_that_do_not_all_fit_keep_a_part(num_prefixes: int) -> None:
    manager = BlockManager(
        num_blocks=8, block_size=1
    )  # two prefixes of four blocks, least recently used would find none
    prefixes = [[10 * prefix + index for index in range(4)] for prefix in range(num_prefixes)]
    rounds = [
        [use(manager, turn * 10 + prefix, prefixes[prefix]) for prefix in range(num_prefixes)] for turn in range(9)
    ]
    assert min(map(sum, rounds[4:])) >= 4


def test_a_chain_loses_its_tail_before_its_head() -> None:
    manager = BlockManager(num_blocks=6, block_size=1)
    for sequence_id in range(3):  # proven, all at the same interval
        use(manager, sequence_id, [1, 2, 3, 4])
    manager.allocate(9, 4)
    assert manager.match_length([content(name) for name in (1, 2, 3, 4)], 4) == 2


def test_nothing_to_evict_is_an_error() -> None:
    with pytest.raises(KeyError):
        EvictionOrder(4).pop()


class Reference:
    """The same order, found by looking at everything: `seen` is what is remembered of each content, in order of use."""

    def __init__(self, num_blocks: int) -> None:
        self.capacity, self.time, self.turn = 4 * num_blocks, 0, 0
        self.seen: dict[bytes, tuple[int, float | None]] = {}
        self.blocks: dict[int, tuple[int, int, int, float | None]] = {}  # turn, place, time, interval

    def add(self, blocks: list[int], contents: list[bytes]) -> None:
        self.turn += 1
        self.time += len(blocks)
        for place, (block, name) in enumerate(zip(blocks, contents, strict=True)):
            interval: float | None = None
            if name in self.seen:
                time, before = self.seen.pop(name)
                interval = self.time - time if before is None else before + 0.5 * (self.time - time - before)
            self.seen[name] = self.time, interval
            self.blocks[block] = self.turn, place, self.time, interval
        for name in list(self.seen)[: -self.capacity]:
            del self.seen[name]

    def pop(self) -> int:
        new = [block for block, (*_, interval) in self.blocks.items() if interval is None]
        in_order = sorted(self.blocks, key=lambda block: self.blocks[block][:2])
        if new:
            victim = next(block for block in in_order if block in new)
        else:
            longest = max(
                in_order, key=lambda block: (self.blocks[block][3], self.blocks[block][0], -self.blocks[block][1])
            )
            oldest = in_order[0]
            interval = self.blocks[longest][3]
            assert interval is not None
            victim = longest if interval > self.time - self.blocks[oldest][2] else oldest
        del self.blocks[victim]
        return victim


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True), max_size=60), st.data())
def test_the_order_is_that_of_the_reference(chains: list[list[int]], data: st.DataObject) -> None:
    """Blocks are named after their contents here; each chain is used, and now and then a block gives way."""
    order, reference = EvictionOrder(2), Reference(2)
    for names in chains:
        for name in names:
            if name in evictable_blocks(order):
                order.remove(name)
                del reference.blocks[name]
        order.add(names, [content(name) for name in names])
        reference.add(names, [content(name) for name in names])
        for _ in range(data.draw(st.integers(0, len(order)))):
            assert order.pop() == reference.pop()
        assert evictable_blocks(order) == set(reference.blocks)
        assert len(order) == len(reference.blocks)
