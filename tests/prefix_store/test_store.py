"""Blocks in, blocks out: what is found, by whom, in which budget."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from dragoman.prefix_store import BlockStore, segment
from dragoman.prefix_store.directory import Directory
from dragoman.prefix_store.store import UNLIMITED, Damage
from tests.prefix_store.blocks import (
    BLOCK_BYTES,
    BLOCKS_IN_SEGMENT,
    SEGMENT_BYTES,
    Clock,
    FullDisk,
    all_found,
    content,
    damage,
    files,
    filled,
    found,
    key,
    open_files,
    opened,
)


def test_what_was_written_is_found_by_it_by_others_and_after_it_is_opened_again(tmp_path: Path) -> None:
    store, other = opened(tmp_path), opened(tmp_path)
    assert all(store.write(key(n), content(n)) for n in range(20))
    assert key(0) not in other
    other.refresh()
    for each in (store, other):
        assert all_found(each, range(21)) == list(range(20))
    store.close()
    other.close()
    assert all_found(opened(tmp_path), range(21)) == list(range(20))


@pytest.mark.parametrize("order", [list(range(30)), list(range(29, -1, -1)), [3, 4, 5, 20, 21, 7, 0]], ids=str)
def test_blocks_are_read_in_any_order_up_to_the_first_that_is_not_there(tmp_path: Path, order: list[int]) -> None:
    filled(tmp_path, range(30))
    store = opened(tmp_path)
    wanted = [*order, 1000, 8]
    into = [bytearray(BLOCK_BYTES) for _ in wanted]
    assert store.read([key(n) for n in wanted], into) == len(order)
    assert [bytes(each) for each in into[: len(order)]] == [content(n) for n in order]


def test_long_runs_are_read_in_pieces(tmp_path: Path) -> None:
    size = 3 << 20  # two in a piece
    store = BlockStore.open(tmp_path / "store", 1 << 30)
    assert all(store.write(key(n), content(n, size)) for n in range(7))
    into = [bytearray(size) for _ in range(7)]
    assert store.read([key(n) for n in range(7)], into) == 7
    assert all(into[n] == content(n, size) for n in range(7))


def test_parts_of_any_type_and_number_go_in_and_come_out(tmp_path: Path) -> None:
    types = [np.float32, np.int8, np.float16, ml_dtypes.bfloat16]
    parts = [np.arange(6 * n, 6 * n + 6).reshape(2, 3).astype(types[n % 4]) for n in range(1500)]  # more than IOV_MAX
    store = BlockStore.open(tmp_path / "store", 10 << 20)
    assert store.write(key(0), parts)
    assert store.write(key(1), memoryview(bytes(40)))
    assert store.write(key(2), b"")
    into = [np.zeros_like(part) for part in parts]
    last = bytearray(40)
    assert store.read([key(0), key(1), key(2)], [into, [memoryview(last)[:10], memoryview(last)[10:]], b""]) == 3
    assert all((a == b).all() for a, b in zip(parts, into, strict=True))


def test_what_cannot_be_a_block_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(ValueError, match="a key must have 16 bytes, got 3"):
        store.write(b"key", b"x")
    with pytest.raises(ValueError, match="must be contiguous"):
        store.write(key(0), np.zeros((4, 4))[:, 1])


def test_a_block_of_another_size_than_asked_for_is_not_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, range(5))
    store = opened(tmp_path)
    into = [bytearray(BLOCK_BYTES), bytearray(BLOCK_BYTES), bytearray(BLOCK_BYTES - 1)]
    assert store.read([key(0), key(1), key(2)], into) == 2
    assert "it has 1000 bytes, where 999 were expected" in caplog.text


def test_the_directory_never_has_more_than_the_budget_and_what_was_used_last_stays(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(300):
        assert store.write(key(n), content(n))
        store.touch([key(0)])
        assert sum(file.stat().st_size for file in files(tmp_path)) <= 100_000
    held = all_found(store, range(300))
    assert held[:BLOCKS_IN_SEGMENT] == list(range(BLOCKS_IN_SEGMENT))  # what lies with the touched block stays, too
    assert held[-60:] == list(range(240, 300))


def test_what_was_read_stays_also_after_a_restart(tmp_path: Path) -> None:
    filled(tmp_path, range(72))
    clock = Clock()
    store = opened(tmp_path, clock=clock)
    clock.now += 100
    assert found(store, 0)
    store.close()
    store = opened(tmp_path, clock=clock)
    clock.now += 100
    for n in range(100, 132):
        assert store.write(key(n), content(n))
    assert found(store, 0)
    assert not found(store, 8)


def test_a_smaller_budget_deletes_at_the_start_and_no_bound_deletes_nothing(tmp_path: Path) -> None:
    filled(tmp_path, range(72))
    store = opened(tmp_path, 30_000)
    assert all_found(store, range(72)) == list(range(48, 72))
    store.close()
    assert len(files(tmp_path)) == 3
    assert BlockStore.open(tmp_path / "store", UNLIMITED).stats().blocks == 24


def test_a_block_that_is_larger_than_a_segment_has_one_and_than_the_budget_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    assert store.write(key(0), content(0, 50_000))
    assert not store.write(key(1), content(1, 100_000))
    assert "has no room in the budget of 100000 bytes" in caplog.text
    assert found(store, 0, 50_000)


def test_what_processes_are_writing_has_its_room_reserved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stores = [opened(tmp_path, 25_000) for _ in range(3)]
    assert [store.write(key(n), content(n)) for n, store in enumerate(stores)] == [True, True, False]
    assert "has no room in the budget of 25000 bytes" in caplog.text
    for n in range(3, 40):
        assert stores[n % 2].write(key(n), content(n))
        assert sum(file.stat().st_size for file in files(tmp_path)) <= 25_000
    stores[0].close()
    assert stores[2].write(key(2), content(2))


def test_a_process_that_writes_nothing_for_long_leaves_its_room_to_others(tmp_path: Path) -> None:
    clock = Clock()
    quiet, other = opened(tmp_path, 15_000, clock=clock), opened(tmp_path, 15_000, clock=clock)
    assert quiet.write(key(0), content(0))
    for passed, is_free in ((599, False), (2, True)):
        clock.now += passed
        quiet.refresh()
        assert other.write(key(1), content(1)) == is_free
    assert all_found(other, range(2)) == [0, 1]


def test_what_others_write_is_seen_however_coarse_the_file_systems_times_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    monkeypatch.setattr(Directory, "changed_ns", lambda directory: now)
    one, two = opened(tmp_path), opened(tmp_path)
    for n in range(30):
        assert one.write(key(n), content(n))
        two.refresh()
        assert found(two, n)


def test_what_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.write(key(0), content(0))
    assert store.write(key(0), content(0))
    assert [one.blocks for one in store.segments()] == [1]


def test_models_have_segments_of_their_own_which_are_listed(tmp_path: Path) -> None:
    clock = Clock()
    store = BlockStore.open(tmp_path / "store", 1_000_000, segment_bytes=SEGMENT_BYTES, clock=clock)
    for n in range(12):  # more models than segments that may be open
        clock.now += 1
        assert store.write(key(n), content(n), label=f"model {n}", namespace=bytes([n]) * 16)
    until = clock() + 50
    clock.now += 1
    assert store.write(key(12), content(12), label="model 0", namespace=bytes(16), keep_until=until)
    facts = store.segments()
    assert [each.label for each in facts] == ["model 0", *(f"model {n}" for n in range(11, -1, -1))]
    assert [each.namespace[0] for each in facts[1:]] == list(range(11, -1, -1))
    assert (facts[0].keep_until, facts[1].keep_until) == (until, 0.0)
    assert {each.blocks for each in facts} == {1}
    store.close()
    again = BlockStore.open(tmp_path / "store", UNLIMITED)
    assert [each.label for each in again.segments()] == [each.label for each in facts]
    assert again.segments()[0].keep_until == pytest.approx(until, abs=0.001)


def test_a_label_of_any_length_is_cut(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.write(key(0), content(0), label="ü" * 1000 + "\udcff")
    store.close()
    assert opened(tmp_path).segments()[0].label == "ü" * (segment.LABEL_BYTES // 2)


def test_people_verify_trim_and_empty_it(tmp_path: Path) -> None:
    filled(tmp_path, range(40))
    damage(files(tmp_path)[1], 2000, b"other bytes")
    looking = BlockStore.open(tmp_path / "store", UNLIMITED)
    assert list(looking.verify()) == [Damage(files(tmp_path)[1].name, 1024, "its checksum is wrong")]
    looking.trim(25_000)
    assert all_found(looking, range(40)) == list(range(24, 40))
    writing = opened(tmp_path)
    assert writing.write(key(50), content(50))
    looking.empty()
    assert not files(tmp_path)
    assert all_found(looking, range(60)) == []
    writing.refresh()
    assert not any("deleted" in each for each in open_files(tmp_path))
    assert all_found(writing, range(60)) == []
    assert writing.write(key(51), content(51))
    looking.refresh()
    assert all_found(looking, range(60)) == [51]


def test_an_empty_segment_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    disk = FullDisk(monkeypatch, 1024)
    assert not store.write(key(0), content(0))
    assert disk.left == 0
    assert len(files(tmp_path)) == 1
    store.close()
    assert not files(tmp_path)


def test_a_closed_store_writes_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.close()
    assert not store.write(key(0), content(0))
    assert not files(tmp_path)


def test_stats_count_what_is_there(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(10):
        assert store.write(key(n), content(n))
    assert all_found(store, range(12)) == list(range(10))
    stats = store.stats()
    assert (stats.blocks, stats.segments, stats.damaged) == (10, 2, 0)
    assert stats.bytes == sum(file.stat().st_size for file in files(tmp_path))


def test_threads_read_write_touch_and_refresh_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stores = [opened(tmp_path, 60_000), opened(tmp_path, 60_000)]
    errors: list[BaseException] = []
    end = time.monotonic() + 0.4

    def run(work: Callable[[int], object]) -> None:
        try:
            n = 0
            while time.monotonic() < end:
                work(n)
                n += 1
        except BaseException as error:
            errors.append(error)

    def work_on(store: BlockStore, first: int) -> list[Callable[[int], object]]:
        return [
            lambda n: store.write(key(n % 500 + first), content(n % 500 + first)),
            lambda n: all_found(store, range(n % 700, n % 700 + 9)),
            lambda n: store.touch([key(n % 700)], time.time() + 1, bytes([n % 7])),
            lambda n: store.refresh(),
        ]

    work = [each for i, store in enumerate(stores) for each in work_on(store, 250 * i)]
    threads = [threading.Thread(target=run, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for store in stores:
        assert store.stats().damaged == 0
        store.close()
    assert "checksum" not in caplog.text
    assert list(BlockStore.open(tmp_path / "store", UNLIMITED).verify()) == []


def test_a_hundred_gigabytes_are_found_again_within_a_second(tmp_path: Path) -> None:
    """They are 1,600 segments of 64 MB with 320 blocks each; here a tenth of them have a tenth of the time."""
    num_segments, num_blocks, block_bytes = 160, 320, 200_000
    (tmp_path / "store").mkdir(mode=0o700)
    (tmp_path / "store" / "lock").touch()
    header = segment.pack_header(segment.Header(64 << 20))
    keys = np.random.default_rng(0).bytes(num_segments * num_blocks * 16)
    entries = np.zeros(num_blocks, segment.ENTRY_DTYPE)
    entries["offset"] = 1024 + np.arange(num_blocks) * (block_bytes + 56)
    entries["length"] = block_bytes
    end = 1024 + num_blocks * (block_bytes + 56)
    for s in range(num_segments):
        entries["key"] = np.frombuffer(keys, "V16", num_blocks, s * num_blocks * 16)
        path = tmp_path / "store" / f"{s:016x}-1-{s:08x}.blocks"
        path.touch(mode=0o600)
        with path.open("r+b") as file:
            file.write(header)
            file.seek(end)
            file.write(segment.pack_index(entries.tobytes(), end))
    taken_s = []
    for _ in range(3):
        begin_s = time.thread_time()
        store = BlockStore.open(tmp_path / "store", UNLIMITED)
        taken_s.append(time.thread_time() - begin_s)
        assert store.stats().blocks == num_segments * num_blocks
        assert store.stats().bytes > 10e9
        store.close()
    assert min(taken_s) < 0.1  # five times what it takes


def test_a_disk_that_is_smaller_than_the_budget_is_told_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    BlockStore.open(tmp_path / "store", 1 << 60, segment_bytes=SEGMENT_BYTES)
    assert "give it a smaller budget" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        opened(tmp_path)
    assert not caplog.text


def test_a_segment_is_synced_once_whole(tmp_path: Path, syncs: list[int]) -> None:
    filled(tmp_path, range(20))
    assert syncs == [file.stat().st_size for file in files(tmp_path)]
