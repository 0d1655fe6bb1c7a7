"""Blocks of several cache kinds: what windows give back, and from which prefixes all kinds can go on."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dragoman.engine.rolling.blocks.block_manager import CachePool, extend_digests
from dragoman.engine.rolling.blocks.block_pools import BlockPools, Prefix
from tests.engine.integrity import check_pools, check_tables
from tests.support.tiers import examples

SIZE = 2


def digests_of(token_ids: list[int]) -> list[bytes]:
    digests: list[bytes] = []
    extend_digests(digests, array("q", token_ids), SIZE, len(token_ids) // SIZE)
    return digests


def pools_of(*windows: int, num_blocks: int = 32) -> BlockPools:
    return BlockPools([CachePool(num_blocks, window) for window in windows], SIZE)


def compute(pools: BlockPools, sequence_id: int, token_ids: list[int], prefix: Prefix | None = None) -> None:
    """Run a sequence to its end in one step, as the scheduler does."""
    pools.allocate(sequence_id, len(token_ids), prefix or pools.no_prefix, len(token_ids))
    pools.commit(sequence_id, digests_of(token_ids))
    pools.pass_blocks(sequence_id, len(token_ids))


def match(pools: BlockPools, token_ids: list[int]) -> Prefix:
    return pools.match_prefix(digests_of(token_ids), pools.no_prefix)


TEXT = list(range(20))


def test_a_window_holds_what_the_next_token_sees_and_gives_back_the_rest() -> None:
    pools = pools_of(0, 5)
    compute(pools, 1, TEXT)  # the next token, at 20, sees 16 to 20
    assert [len(pools.table(1, kind)) for kind in (0, 1)] == [10, 2]
    assert pools.managers[1].num_passed(1) == 8
    assert pools.num_used_blocks == 12
    assert pools.num_free_blocks == 22, "of the kind that has the fewest"


def test_blocks_are_passed_only_when_all_their_tokens_are_out_of_sight() -> None:
    pools = pools_of(5)
    pools.allocate(1, 9, pools.no_prefix, 9)
    held = []
    for position in range(9):
        pools.pass_blocks(1, position)
        held.append(len(pools.table(1)))
    assert held == [5, 5, 5, 5, 5, 5, 4, 4, 3]  # at position 6 the first visible token is 2, in the second block


def test_a_prefix_needs_all_blocks_of_the_first_kind_and_a_window_of_the_others() -> None:
    pools = pools_of(0, 5)
    compute(pools, 1, TEXT)
    pools.free(1)
    prefix = match(pools, [*TEXT[:15], 99, 98])
    assert prefix.length == 7
    assert [len(blocks) for blocks in prefix.blocks] == [7, 2]


def test_where_a_window_is_not_cached_a_shorter_prefix_is_found() -> None:
    pools = BlockPools([CachePool(32), CachePool(8, 5)], SIZE)
    for end in range(2, 21, 2):  # by pieces of two tokens: the second kind has no room for all
        if end == 2:
            pools.allocate(1, len(TEXT), pools.no_prefix, end)
        else:
            assert pools.append(1, end - 2, end)
        pools.commit(1, digests_of(TEXT[:end]))
        pools.pass_blocks(1, end)
    pools.free(1)
    pools.allocate(2, 12, pools.no_prefix, 12)  # evicts what was passed first
    assert match(pools, TEXT).length == 10, "all of it, with the window before its end"
    assert match(pools, [*TEXT[:8], 77]).length == 0, "the window before that is gone"


def test_siblings_share_a_prefix_as_long_as_nobody_has_passed_its_window() -> None:
    pools = pools_of(0, 5)
    pools.allocate(1, 20, pools.no_prefix, 20)
    pools.pass_blocks(1, 12)
    assert pools.shared_prefix(1, 6).length == 6
    assert [len(blocks) for blocks in pools.shared_prefix(1, 6).blocks] == [6, 2]
    assert pools.shared_prefix(1, 5).length == 0
    assert pools.shared_prefix(1, 7).length == 7


def test_what_is_shared_is_kept_where_more_is_cached() -> None:
    pools = pools_of(0)
    compute(pools, 1, TEXT)
    pools.allocate(2, 4, pools.no_prefix, 4)
    shared = pools.shared_prefix(2, 2)
    prefix = pools.match_prefix(digests_of(TEXT), shared)
    assert prefix.length == 10
    assert prefix.blocks[0] == [*pools.table(2), *pools.table(1)[2:]]


def test_a_sequence_is_cut_back_to_its_prompt_or_begins_anew_if_a_window_has_passed_it() -> None:
    pools = pools_of(0, 5)
    compute(pools, 1, TEXT)
    assert pools.truncate(1, 9) == 0, "the token after nine blocks sees the eighth, which is passed"
    assert [len(pools.table(1, kind)) for kind in (0, 1)] == [0, 0]
    assert pools.append(1, 0, 20)
    assert pools.truncate(1, 9) == 9
    assert [len(pools.table(1, kind)) for kind in (0, 1)] == [9, 9]
    check_pools(pools)


def test_blocks_of_all_kinds_are_had_or_none() -> None:
    pools = BlockPools([CachePool(8), CachePool(2, 5)], SIZE)
    pools.allocate(1, 4, pools.no_prefix, 4)
    assert not pools.append(1, 4, 5)
    assert [len(pools.table(1, kind)) for kind in (0, 1)] == [2, 2]


@given(
    st.integers(1, 9),
    st.lists(st.booleans(), min_size=10, max_size=10),
    st.lists(st.booleans(), min_size=10, max_size=10),
)
def test_the_prefix_that_is_found_is_the_longest_there_is(window: int, full: list[bool], windowed: list[bool]) -> None:
    pools = pools_of(0, window)
    pools.allocate(1, len(TEXT), pools.no_prefix, len(TEXT))
    digests = digests_of(TEXT)
    for manager, has in zip(pools.managers, (full, windowed), strict=True):
        # Some other digest hides a block from the cache.
        manager.commit(
            1, [digest if is_there else b"x" + digest for digest, is_there in zip(digests, has, strict=True)]
        )

    def fits(length: int) -> bool:
        first = max(length * SIZE - window + 1, 0) // SIZE
        return all(full[:length]) and all(windowed[first:length])

    assert match(pools, TEXT).length == max(length for length in range(11) if fits(length))


class BlockPoolsMachine(RuleBasedStateMachine):
    """Random verbs, in pieces as the scheduler computes them; a model keeps what every slot of every kind should hold."""

    @initialize(windows=st.sampled_from([(0,), (0, 3), (0, 2, 5), (4,), (1, 6)]))
    def build(self, windows: tuple[int, ...]) -> None:
        self.pools = BlockPools([CachePool(10, window) for window in windows], SIZE)
        self.slots: list[dict[int, list[int]]] = [{} for _ in windows]  # block -> tokens, as the runner would hold them
        self.tokens: dict[int, list[int]] = {}  # sequence -> its computed tokens
        self.next_id = 0

    def write(self, sequence_id: int, begin: int) -> None:
        for kind, pairs in self.pools.take_copies():
            for source, destination in pairs:
                self.slots[kind][destination] = list(self.slots[kind].get(source, [-1] * SIZE))
        for kind, manager in enumerate(self.pools.managers):
            table = manager.table(sequence_id)
            for position in range(begin, len(self.tokens[sequence_id])):
                block, slot = divmod(position, SIZE)
                place = table[block - manager.num_passed(sequence_id)]
                self.slots[kind].setdefault(place, [-1] * SIZE)[slot] = self.tokens[sequence_id][position]

    def some_sequence(self, data: st.DataObject) -> int:
        sequence_id: int = data.draw(st.sampled_from(sorted(self.tokens)))
        return sequence_id

    @rule(token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=12), data=st.data())
    def start(self, token_ids: list[int], data: st.DataObject) -> None:
        shared = self.pools.no_prefix
        if self.tokens and data.draw(st.sampled_from([True, False])):
            sibling = self.some_sequence(data)
            length = data.draw(st.integers(0, len(self.tokens[sibling]) // SIZE))
            token_ids = self.tokens[sibling][: length * SIZE] + token_ids
            shared = self.pools.shared_prefix(sibling, length)
        prefix = self.pools.match_prefix(digests_of(token_ids)[: (len(token_ids) - 1) // SIZE], shared)
        end = data.draw(st.integers(prefix.length * SIZE + 1, len(token_ids)))
        spares = self.pools.num_spare_blocks(len(token_ids), prefix, end)
        if min(spares) < 0:
            return
        self.pools.allocate(self.next_id, len(token_ids), prefix, end)
        assert spares == [manager.num_free_blocks for manager in self.pools.managers]
        self.tokens[self.next_id] = token_ids[:end]
        self.write(self.next_id, prefix.length * SIZE)
        self.next_id += 1

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=5))
    def grow(self, data: st.DataObject, token_ids: list[int]) -> None:
        sequence_id = self.some_sequence(data)
        begin = len(self.tokens[sequence_id])
        frees = [manager.num_free_blocks for manager in self.pools.managers]
        if self.pools.append(sequence_id, begin, begin + len(token_ids)):
            self.tokens[sequence_id] = self.tokens[sequence_id] + token_ids
            self.write(sequence_id, begin)
        else:
            assert frees == [manager.num_free_blocks for manager in self.pools.managers]

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = self.some_sequence(data)
        self.pools.fork(parent, self.next_id)
        self.tokens[self.next_id] = self.tokens[parent]
        self.next_id += 1

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), commits=st.booleans())
    def settle(self, data: st.DataObject, commits: bool) -> None:
        sequence_id = self.some_sequence(data)
        if commits:
            self.pools.commit(sequence_id, digests_of(self.tokens[sequence_id]))
        self.pools.pass_blocks(sequence_id, len(self.tokens[sequence_id]))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), length=st.integers(0, 3))
    def truncate(self, data: st.DataObject, length: int) -> None:
        sequence_id = self.some_sequence(data)
        length = min(length, len(self.tokens[sequence_id]) // SIZE)
        num_left = self.pools.truncate(sequence_id, length)
        assert num_left in (0, length)
        self.tokens[sequence_id] = self.tokens[sequence_id][: num_left * SIZE]

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        sequence_id = self.some_sequence(data)
        self.pools.free(sequence_id)
        del self.tokens[sequence_id]

    @invariant()
    def every_sequence_finds_the_tokens_that_its_next_one_sees(self) -> None:
        if not hasattr(self, "pools"):
            return
        check_pools(self.pools)
        for sequence_id, token_ids in self.tokens.items():
            check_tables(self.pools, sequence_id, len(token_ids))
            for kind, manager in enumerate(self.pools.managers):
                begin = manager.num_passed(sequence_id) * SIZE
                content = [
                    token for block in manager.table(sequence_id) for token in self.slots[kind].get(block, [-1] * SIZE)
                ]
                assert content[: len(token_ids) - begin] == token_ids[begin:]


BlockPoolsMachine.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=30)
TestBlockPools = BlockPoolsMachine.TestCase
