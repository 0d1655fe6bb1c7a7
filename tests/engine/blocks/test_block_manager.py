"""The block manager: sharing, copy-on-write, the prefix cache and its eviction order."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dragoman.engine.rolling.blocks.block_manager import BlockManager, extend_digests
from tests.engine.integrity import check_manager
from tests.support.tiers import examples


def digests_of(token_ids: list[int], block_size: int) -> list[bytes]:
    digests: list[bytes] = []
    extend_digests(digests, array("q", token_ids), block_size, len(token_ids) // block_size)
    return digests


def matched(manager: BlockManager, digests: list[bytes]) -> list[int]:
    """The cached blocks of the longest prefix."""
    return manager.cached_blocks(digests, manager.match_length(digests, len(digests)))


def cache_prompt(manager: BlockManager, sequence_id: int, token_ids: list[int]) -> list[int]:
    """Run a prompt through the manager as if it had been computed; returns its blocks."""
    digests = digests_of(token_ids, manager.block_size)
    manager.allocate(sequence_id, len(token_ids), matched(manager, digests))
    manager.commit(sequence_id, digests)
    return list(manager.table(sequence_id))


def test_a_table_has_as_many_blocks_as_its_tokens_need() -> None:
    manager = BlockManager(num_blocks=4, block_size=4)
    manager.allocate(1, 9)
    assert len(manager.table(1)) == 3
    assert manager.num_used_blocks == 3
    manager.free(1)
    assert manager.num_used_blocks == 0


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (4, 0)])
def test_a_cache_without_slots_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="must both be at least 1"):
        BlockManager(num_blocks, block_size)


def test_allocating_twice_or_too_much_is_refused() -> None:
    manager = BlockManager(num_blocks=2, block_size=4)
    manager.allocate(1, 4)
    with pytest.raises(ValueError, match="already has a table"):
        manager.allocate(1, 4)
    with pytest.raises(ValueError, match="num_tokens 5"):
        manager.allocate(2, 5)
    check_manager(manager)


def test_append_takes_a_block_only_at_a_block_boundary() -> None:
    manager = BlockManager(num_blocks=3, block_size=4)
    manager.allocate(1, 3)
    assert manager.append(1, 3, 4)
    assert len(manager.table(1)) == 1
    assert manager.append(1, 4, 5)
    assert len(manager.table(1)) == 2


def test_append_without_enough_blocks_changes_nothing() -> None:
    manager = BlockManager(num_blocks=2, block_size=4)
    manager.allocate(1, 4)
    assert not manager.append(1, 4, 13)
    assert len(manager.table(1)) == 1
    assert manager.num_free_blocks == 1


def test_a_fork_shares_blocks_until_it_writes() -> None:
    manager = BlockManager(num_blocks=4, block_size=4)
    manager.allocate(1, 6)
    manager.fork(1, 2)
    assert list(manager.table(2)) == list(manager.table(1))
    assert manager.num_used_blocks == 2
    shared = manager.table(1)[1]
    assert manager.append(2, 6, 7)
    assert manager.take_copies() == [(shared, manager.table(2)[1])]
    assert manager.take_copies() == []
    assert manager.append(1, 6, 7)
    assert manager.take_copies() == [], "the last holder of a block writes it in place"
    assert manager.table(1)[1] == shared
    assert manager.table(1)[0] == manager.table(2)[0]


def test_copy_on_write_needs_a_free_block() -> None:
    manager = BlockManager(num_blocks=1, block_size=4)
    manager.allocate(1, 2)
    manager.fork(1, 2)
    assert not manager.append(2, 2, 3)
    manager.free(1)
    assert manager.append(2, 2, 3)
    assert manager.take_copies() == []


def test_a_long_append_copies_every_shared_block_it_writes() -> None:
    manager = BlockManager(num_blocks=8, block_size=2)
    manager.allocate(1, 6)
    manager.fork(1, 2)
    before = list(manager.table(1))
    assert manager.append(2, 3, 8)
    after = list(manager.table(2))
    assert after[0] == before[0]
    assert sorted(manager.take_copies()) == sorted(zip(before[1:], after[1:3], strict=True))
    check_manager(manager)


def test_forking_an_unknown_parent_or_onto_a_known_child_is_refused() -> None:
    manager = BlockManager(num_blocks=4, block_size=4)
    manager.allocate(1, 1)
    manager.allocate(2, 1)
    with pytest.raises(KeyError):
        manager.fork(9, 3)
    with pytest.raises(ValueError, match="sequence_id 2 already has a table"):
        manager.fork(1, 2)


def test_a_finished_prompt_is_found_by_the_next_one() -> None:
    manager = BlockManager(num_blocks=8, block_size=2)
    blocks = cache_prompt(manager, 1, [5, 6, 7, 8, 9])
    manager.free(1)
    assert manager.num_used_blocks == 0
    assert matched(manager, digests_of([5, 6, 7, 8, 1, 1], 2)) == blocks[:2]
    assert matched(manager, digests_of([5, 6, 0, 0], 2)) == blocks[:1]


def test_equal_blocks_after_different_prefixes_are_different() -> None:
    manager = BlockManager(num_blocks=8, block_size=2)
    cache_prompt(manager, 1, [1, 2, 3, 4])
    assert matched(manager, digests_of([9, 9, 3, 4], 2)) == []


def test_a_block_that_was_not_committed_is_not_found() -> None:
    manager = BlockManager(num_blocks=8, block_size=2)
    manager.allocate(1, 4)
    assert matched(manager, digests_of([1, 2, 3, 4], 2)) == []


def test_twins_keep_one_cached_copy() -> None:
    manager = BlockManager(num_blocks=4, block_size=2)
    digests = digests_of([1, 2], 2)
    for sequence_id in (1, 2):
        manager.allocate(sequence_id, 2)
    first = list(manager.table(1))
    manager.commit(1, digests)
    manager.commit(2, digests)
    manager.free(1)
    manager.free(2)
    check_manager(manager)
    assert matched(manager, digests) == first


def test_reused_blocks_are_held_by_both_sequences() -> None:
    manager = BlockManager(num_blocks=8, block_size=2)
    first = cache_prompt(manager, 1, [1, 2, 3, 4])
    second = cache_prompt(manager, 2, [1, 2, 3, 4, 5])
    assert second[:2] == first
    manager.free(1)
    assert manager.num_used_blocks == 3
    check_manager(manager)


def test_the_least_recently_used_content_is_evicted_first_and_tails_before_heads() -> None:
    manager = BlockManager(num_blocks=4, block_size=2)
    old, new = [1, 2, 3, 4], [5, 6, 7, 8]
    old_blocks = cache_prompt(manager, 1, old)
    new_blocks = cache_prompt(manager, 2, new)
    manager.free(1)
    manager.free(2)
    manager.allocate(3, 2)
    assert matched(manager, digests_of(old, 2)) == old_blocks[:1]
    manager.allocate(4, 2)
    assert matched(manager, digests_of(old, 2)) == []
    assert matched(manager, digests_of(new, 2)) == new_blocks


def test_using_cached_content_makes_it_recent() -> None:
    manager = BlockManager(num_blocks=2, block_size=2)
    blocks = {}
    for sequence_id, token_ids in ((1, [1, 2]), (2, [3, 4])):
        blocks[sequence_id] = cache_prompt(manager, sequence_id, token_ids)
    manager.free(1)
    manager.free(2)
    cache_prompt(manager, 3, [1, 2])
    manager.free(3)
    manager.allocate(4, 1)
    assert matched(manager, digests_of([1, 2], 2)) == blocks[1]
    assert matched(manager, digests_of([3, 4], 2)) == []


def test_free_blocks_are_used_before_cached_content_is_evicted() -> None:
    manager = BlockManager(num_blocks=3, block_size=2)
    cached = cache_prompt(manager, 1, [1, 2])
    manager.free(1)
    manager.allocate(2, 4)
    assert matched(manager, digests_of([1, 2], 2)) == cached


def test_reused_content_does_not_count_as_free_when_asking_for_more() -> None:
    manager = BlockManager(num_blocks=2, block_size=2)
    cache_prompt(manager, 1, [1, 2])
    manager.free(1)
    prefix = matched(manager, digests_of([1, 2], 2))
    assert manager.num_spare_blocks(4, prefix) == 0
    assert manager.num_spare_blocks(6, prefix) < 0
    assert manager.num_spare_blocks(2, prefix) == 1


class BlockManagerMachine(RuleBasedStateMachine):
    """Random verbs; a model keeps what every slot should hold, by content instead of by block."""

    NUM_BLOCKS, BLOCK_SIZE = 8, 2

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(self.NUM_BLOCKS, self.BLOCK_SIZE)
        self.slots: dict[int, list[int]] = {}  # block -> tokens, as the runner would hold them
        self.tokens: dict[int, list[int]] = {}  # sequence -> its tokens
        self.next_id = 0

    def write(self, sequence_id: int, begin: int) -> None:
        for source, destination in self.manager.take_copies():
            self.slots[destination] = list(self.slots[source])
        table = self.manager.table(sequence_id)
        for position in range(begin, len(self.tokens[sequence_id])):
            block, slot = divmod(position, self.BLOCK_SIZE)
            self.slots.setdefault(table[block], [-1] * self.BLOCK_SIZE)[slot] = self.tokens[sequence_id][position]

    @rule(token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def start(self, token_ids: list[int]) -> None:
        prefix = matched(self.manager, digests_of(token_ids, self.BLOCK_SIZE))
        if self.manager.num_spare_blocks(len(token_ids), prefix) < 0:
            return
        self.manager.allocate(self.next_id, len(token_ids), prefix)
        self.tokens[self.next_id] = token_ids
        self.write(self.next_id, len(prefix) * self.BLOCK_SIZE)
        self.next_id += 1

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=5))
    def grow(self, data: st.DataObject, token_ids: list[int]) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.tokens)))
        begin = len(self.tokens[sequence_id])
        if self.manager.append(sequence_id, begin, begin + len(token_ids)):
            self.tokens[sequence_id] = self.tokens[sequence_id] + token_ids
            self.write(sequence_id, begin)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(sorted(self.tokens)))
        self.manager.fork(parent, self.next_id)
        self.tokens[self.next_id] = self.tokens[parent]
        self.next_id += 1

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.tokens)))
        self.manager.commit(sequence_id, digests_of(self.tokens[sequence_id], self.BLOCK_SIZE))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), num_blocks=st.integers(0, 3))
    def truncate(self, data: st.DataObject, num_blocks: int) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.tokens)))
        self.manager.truncate(sequence_id, num_blocks)
        self.tokens[sequence_id] = self.tokens[sequence_id][: num_blocks * self.BLOCK_SIZE]
        assert self.manager.num_held_blocks(sequence_id) <= num_blocks

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.tokens)))
        self.manager.free(sequence_id)
        del self.tokens[sequence_id]

    @invariant()
    def every_sequence_finds_its_own_tokens(self) -> None:
        check_manager(self.manager)
        for sequence_id, token_ids in self.tokens.items():
            content = [token for block in self.manager.table(sequence_id) for token in self.slots[block]]
            assert content[: len(token_ids)] == token_ids


BlockManagerMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30)
TestBlockManager = BlockManagerMachine.TestCase
