"""Which segments go first: the least recently used, leases aside."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dragoman.prefix_store import BlockStore, segment
from dragoman.prefix_store.catalogue import first_to_go
from dragoman.prefix_store.segment import Use
from tests.prefix_store.blocks import BLOCKS_IN_SEGMENT, SEGMENT_BYTES, Clock, all_found, content, files, flip, key

NOW = 1000.0
uses = st.lists(
    st.builds(
        Use,
        name=st.uuids().map(str),
        size=st.integers(1, 20),
        used_at=st.integers(0, 1100).map(float),
        leases=st.dictionaries(st.sampled_from([b"a", b"b", b"c"]), st.integers(900, 1100).map(float), max_size=3),
    ),
    unique_by=lambda use: use.name,
    max_size=20,
)


def order(segments: list[Use], budget: int) -> list[str]:
    return [use.name for use in first_to_go(segments, budget, NOW)]


@given(uses, st.integers(0, 100))
def test_leases_hold_at_most_half_and_each_group_its_part(segments: list[Use], budget: int) -> None:
    going = first_to_go(segments, budget, NOW)
    assert sorted(use.name for use in going) == sorted(use.name for use in segments)
    ages = [(min(use.used_at, NOW), use.name) for use in going]
    turn = next((i for i in range(1, len(ages)) if ages[i] < ages[i - 1]), len(ages))
    held = going[turn:]  # in two rows by last use, what is held in the second
    assert ages[turn:] == sorted(ages[turn:])
    assert sum(use.size for use in held) <= budget / 2
    groups = {group for use in segments for group, until in use.leases.items() if until > NOW}
    assert all(any(until > NOW for until in use.leases.values()) for use in held)
    for group in groups:
        alone = [use for use in held if [g for g, until in use.leases.items() if until > NOW] == [group]]
        assert sum(use.size for use in alone) <= budget / 2 / len(groups)


def test_a_segment_of_several_groups_does_not_take_more_than_half_for_leases() -> None:
    until = NOW + 1
    full, shared = Use("full", 10, 3.0, {b"a": until}), Use("shared", 12, 2.0, {b"a": until, b"b": until})
    assert order([full, shared, Use("other", 1, 2.5)], 40) == ["shared", "other", "full"]


def test_a_lease_holds_until_it_ends() -> None:
    old, new = Use("old", 10, 1.0, {b"a": NOW + 1}), Use("new", 10, 2.0)
    assert order([old, new], 100) == ["new", "old"]
    old.leases = {b"a": NOW}
    assert order([old, new], 100) == ["old", "new"]


def test_a_group_with_many_leases_takes_nothing_of_anothers_part() -> None:
    greedy = [Use(f"greedy {n}", 10, 100.0 + n, {b"greedy": NOW + 1}) for n in range(9)]
    modest = Use("modest", 10, 1.0, {b"modest": NOW + 1})
    other = [Use(f"other {n}", 10, 50.0 + n) for n in range(3)]
    names = order([*greedy, modest, *other], 80)  # two segments for each of the two
    assert names[-3:] == ["modest", "greedy 7", "greedy 8"]
    assert names[:3] == [f"other {n}" for n in range(3)]


def test_a_use_in_the_future_is_one_of_now() -> None:
    """The clock was set back: such segments do not stay for ever."""
    assert order([Use("b", 1, NOW + 1e9), Use("a", 1, NOW + 1e6), Use("c", 1, NOW)], 100) == ["a", "b", "c"]


def test_leased_blocks_stay_while_others_pass_through(tmp_path: Path) -> None:
    clock = Clock()
    store = BlockStore.open(tmp_path / "store", 100_000, segment_bytes=SEGMENT_BYTES, clock=clock)
    write(store, clock, range(16), keep_until=clock() + 5000)
    write(store, clock, range(100, 200))
    assert all_found(store, range(16)) == list(range(16))
    clock.now += 5000
    write(store, clock, range(200, 300))
    assert all_found(store, range(16)) == list(range(8, 16))  # these lie in the segment that is being written


def test_what_one_process_uses_no_other_deletes_first(tmp_path: Path) -> None:
    clock = Clock()
    one = BlockStore.open(tmp_path / "store", 100_000, segment_bytes=SEGMENT_BYTES, clock=clock)
    two = BlockStore.open(tmp_path / "store", 100_000, segment_bytes=SEGMENT_BYTES, clock=clock)
    write(one, clock, range(72))
    two.refresh()
    clock.now += 31
    assert all_found(two, [0]) == [0]
    two.refresh()
    write(one, clock, range(100, 124))
    assert all_found(one, [0, 8]) == [0]


def test_leases_are_seen_by_other_processes_and_after_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    first = BlockStore.open(tmp_path / "store", 100_000, segment_bytes=SEGMENT_BYTES, clock=clock)
    write(first, clock, range(16))
    first.close()
    first = BlockStore.open(tmp_path / "store", 100_000, segment_bytes=SEGMENT_BYTES, clock=clock)
    first.touch([key(n) for n in range(8)], clock() + 5000, b"somebody")
    first.refresh()  # writes it down
    other = BlockStore.open(tmp_path / "store", 100_000, segment_bytes=SEGMENT_BYTES, clock=clock)
    clock.now += 31
    first.touch([key(n) for n in range(8, 16)], clock() + 5000, b"somebody else")
    first.refresh()
    write(other, clock, range(100, 200))
    other.close()
    again = BlockStore.open(tmp_path / "store", 100_000, segment_bytes=SEGMENT_BYTES, clock=clock)
    write(again, clock, range(200, 300))
    assert all_found(again, range(16)) == list(range(16))


def test_a_segment_remembers_the_leases_that_end_last_and_none_that_is_damaged(tmp_path: Path) -> None:
    clock = Clock()
    store = BlockStore.open(tmp_path / "store", 100_000, segment_bytes=SEGMENT_BYTES, clock=clock)
    assert store.write(key(0), content(0))
    for group in range(40):
        store.touch([key(0)], clock() + 100 + group, bytes([group]))
    store.touch([key(0)], clock() + 1000, bytes([30]))
    store.refresh()
    clock.now += 31
    store.touch([key(0)], clock() + 1000, bytes([39]))
    store.close()
    (path,) = files(tmp_path)
    slots = [slot for slot in segment.unpack_leases(path.read_bytes()) if slot]
    assert len({group for group, _ in slots}) == segment.NUM_LEASES
    kept = {group for group, _ in slots}
    last = [39, 38, 37, 36, 35, 34, 33, 32, 31, 30]
    assert kept >= {segment.group_digest(bytes([group])) for group in last}
    for offset in segment.lease_offsets():
        flip(path, offset + 9)
    again = BlockStore.open(tmp_path / "store", 100_000, segment_bytes=SEGMENT_BYTES, clock=clock)
    assert again.segments()[0].keep_until == 0.0
    assert all_found(again, [0]) == [0]


def write(store: BlockStore, clock: Clock, numbers: range, keep_until: float | None = None) -> None:
    assert len(numbers) >= BLOCKS_IN_SEGMENT
    for number in numbers:
        clock.now += 0.01
        assert store.write(key(number), content(number), keep_until=keep_until, group=b"caller")
