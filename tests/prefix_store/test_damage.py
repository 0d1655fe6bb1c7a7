"""What a disk may do to files: no byte that was not written is ever given out, and what is whole is found."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from dragoman.prefix_store import BlockStore, directory, segment
from dragoman.prefix_store.store import UNLIMITED
from tests.prefix_store.blocks import (
    BLOCK_BYTES,
    BLOCKS_IN_SEGMENT,
    FullDisk,
    all_found,
    content,
    damage,
    files,
    filled,
    flip,
    found,
    key,
    opened,
)
from tests.support import tiers

IN_FILE = range(BLOCKS_IN_SEGMENT)
BLOCK = segment.BLOCK_HEADER_BYTES + BLOCK_BYTES
END = segment.HEADER_BYTES + BLOCKS_IN_SEGMENT * BLOCK  # of the blocks; the index follows
SIZE = END + segment.index_bytes(BLOCKS_IN_SEGMENT)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store's directory with one sealed segment."""
    filled(tmp_path, IN_FILE)
    assert files(tmp_path)[0].stat().st_size == SIZE
    return tmp_path


def without(*numbers: int) -> list[int]:
    return [n for n in IN_FILE if n not in numbers]


def test_a_flipped_bit_costs_at_most_its_block(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Flip a bit of each field, before the store is opened and while it is open."""
    (file,) = files(path)
    whole, facts = file.read_bytes(), file.stat()
    third = segment.HEADER_BYTES + 3 * BLOCK
    rows: dict[str, tuple[int, list[int]]] = {
        **{f"header at {offset}": (offset, []) for offset in (0, 16, 20, 24, 32, 48, 50, 480, 496, 511)},
        **{f"lease at {offset}": (offset, list(IN_FILE)) for offset in (512, 520, 528, 1023)},
        **{f"block header at {offset}": (third + offset, without(3)) for offset in (0, 8, 23, 24, 32, 47, 48, 55)},
        **{f"content at {offset}": (third + offset, without(3)) for offset in (56, 57, 500, BLOCK - 1)},
        **{f"index at {offset}": (END + offset, list(IN_FILE)) for offset in (0, 16, 24, 31, 32, 100)},
        **{f"footer at {offset}": (SIZE - offset, list(IN_FILE)) for offset in (40, 32, 24, 16, 1)},
    }
    for name, (offset, left) in rows.items():
        for bit in (0, 7):
            restore(file, whole, facts)
            opened_before = opened(path)
            flip(file, offset, bit)
            is_content = segment.HEADER_BYTES <= offset < END
            assert all_found(opened_before, IN_FILE) == (left if is_content else list(IN_FILE)), name
            caplog.clear()
            store = opened(path)
            assert all_found(store, IN_FILE) == left, name
            assert len(caplog.records) == (left != list(IN_FILE)), name
            assert store.stats().damaged == (is_content), name


def test_a_truncated_file_loses_what_is_gone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Cut the file within and between all its parts, before the store is opened and while it is open."""
    (file,) = files(path)
    whole, facts = file.read_bytes(), file.stat()
    lengths = [
        0,
        1,
        500,
        segment.HEADER_BYTES - 1,
        segment.HEADER_BYTES,
        END,
        END + 1,
        END + 32,
        SIZE - 40,
        SIZE - 1,
        SIZE,
    ]
    for block in (0, 3, 7):
        begin = segment.HEADER_BYTES + block * BLOCK
        lengths += [begin + 1, begin + segment.BLOCK_HEADER_BYTES, begin + BLOCK - 1, begin + BLOCK]
    for length in lengths:
        restore(file, whole, facts)
        opened_before = opened(path)
        os.truncate(file, length)
        left = list(range(max(min((length - segment.HEADER_BYTES) // BLOCK, BLOCKS_IN_SEGMENT), 0)))
        caplog.clear()
        assert all_found(opened_before, IN_FILE) == left, length
        assert len(caplog.records) == (left != list(IN_FILE)), length  # one line for all of them
        assert opened_before.stats().damaged == BLOCKS_IN_SEGMENT - len(left)
        store = opened(path)
        assert all_found(store, IN_FILE) == left, length
        assert store.write(key(20), content(20))
        assert found(store, 20)
        store.empty()


def restore(file: Path, whole: bytes, facts: os.stat_result) -> None:
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    file.write_bytes(whole)
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def test_a_write_that_ends_anywhere_leaves_whole_blocks(path: Path) -> None:
    """As after `kill -9`: a segment without an index, cut at each of many places, is read, sealed and read again."""
    (file,) = files(path)
    whole, facts = file.read_bytes(), file.stat()
    ends = [segment.HEADER_BYTES + n * BLOCK for n in range(BLOCKS_IN_SEGMENT + 1)]
    some = sorted({*range(0, END, 173), *(end + d for end in ends for d in (-1, 0, 1))})
    for length in tiers.width(range(0, END, 7), some):
        restore(file, whole[:length], facts)
        left = list(range(max((length - segment.HEADER_BYTES) // BLOCK, 0)))
        assert all_found(opened(path), IN_FILE) == left
        assert all_found(opened(path), IN_FILE) == left
        sealed = [len(left)] if left else []
        assert [each.blocks for each in opened(path).segments() if each.is_sealed] == sealed
        assert len(files(path)) == len(sealed)


def test_bytes_that_never_reached_the_disk_are_not_found(path: Path) -> None:
    """As after the power went: the file has its size, and zeros in the place of some of its pages."""
    (file,) = files(path)
    begin = segment.HEADER_BYTES + 2 * BLOCK
    damage(file, begin, bytes(BLOCK + 100))
    assert all_found(opened(path), IN_FILE) == without(2, 3)


def test_a_damaged_block_is_written_again_and_the_new_one_is_found_from_then_on(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flip(files(path)[0], segment.HEADER_BYTES + 100)
    store = opened(path)
    assert not found(store, 0)
    assert store.write(key(0), content(0))
    assert all_found(store, IN_FILE) == list(IN_FILE)
    store.close()
    caplog.clear()
    assert all_found(opened(path), IN_FILE) == list(IN_FILE)
    assert not caplog.records


def test_a_block_that_two_segments_hold_is_found_while_one_of_them_is_whole(tmp_path: Path) -> None:
    """Two processes computed the same prompt at the same time."""
    for spoilt in (0, 1, "a deleted one"):
        one, two = opened(tmp_path), opened(tmp_path)
        for n in range(3):
            assert one.write(key(n), content(n))
            assert two.write(key(n), content(n))
        one.close()
        two.close()
        assert [file.stat().st_size for file in files(tmp_path)] == [segment.HEADER_BYTES + 3 * BLOCK + 136] * 2
        store = opened(tmp_path)
        assert store.stats().blocks == 3
        if isinstance(spoilt, int):
            flip(files(tmp_path)[spoilt], segment.HEADER_BYTES + BLOCK + 100)
        else:
            files(tmp_path)[1].unlink()
            store.refresh()
        into = [bytearray(BLOCK_BYTES) for _ in range(3)]
        assert store.read([key(n) for n in range(3)], into) == 3
        assert [bytes(each) for each in into] == [content(n) for n in range(3)]
        store.empty()


def test_files_that_vanish_under_the_store_are_misses(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(path)
    files(path)[0].unlink()
    store.fetch([key(n) for n in (*IN_FILE, 99)])  # which tells nobody
    assert all_found(store, IN_FILE) == []
    assert [record.message for record in caplog.records if "is gone" in record.message] == [caplog.records[0].message]
    assert store.write(key(0), content(0))
    files(path)[0].unlink()  # while it is written
    assert store.write(key(1), content(1))
    store.refresh()
    assert all_found(store, IN_FILE) == [1]
    assert store.stats().segments == len(files(path)) == 1


def test_a_file_that_is_truncated_while_it_is_written_is_given_up(tmp_path: Path) -> None:
    for length in (0, segment.HEADER_BYTES + 10):
        store = opened(tmp_path)
        assert store.write(key(0), content(0))
        os.truncate(files(tmp_path)[0], length)
        assert store.write(key(1), content(1))
        store.close()
        again = opened(tmp_path)
        assert all_found(again, range(2)) == [1]
        again.empty()


def test_a_directory_that_vanishes_costs_a_line(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(path)
    for file in (path / "store").iterdir():
        file.unlink()
    (path / "store").rmdir()
    assert [store.write(key(n), content(n)) for n in (20, 21)] == [False, False]
    assert [record.message for record in caplog.records] == [
        f"prefix store: nothing can be written to {path / 'store'}: No such file or directory"
    ]
    store.refresh()
    assert all_found(store, IN_FILE) == []
    store.close()


@pytest.mark.parametrize("call", ["preadv", "open"])
def test_an_error_of_the_disk_is_a_miss(path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    store = opened(path)
    monkeypatch.setattr(os, call, fail)
    assert store.read([key(0)], [bytearray(BLOCK_BYTES)]) == 0
    monkeypatch.undo()
    assert all_found(store, IN_FILE) == without(0)


def test_a_process_with_too_many_files_open_forgets_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(path)

    def fail(*arguments: object, **options: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", fail)
    assert store.read([key(0)], [bytearray(BLOCK_BYTES)]) == 0
    assert not store.write(key(20), content(20))
    store.refresh()
    monkeypatch.undo()
    assert all_found(store, IN_FILE) == list(IN_FILE)


def test_a_full_disk_at_any_byte_keeps_what_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for room in [*range(0, SIZE + 1, 211), END - 1, END, END + 1, SIZE - 1, SIZE]:
        store = opened(tmp_path)
        with monkeypatch.context() as patch:
            FullDisk(patch, room)
            written = [n for n in IN_FILE if store.write(key(n), content(n))]
            assert len(written) == max(min((room - segment.HEADER_BYTES) // BLOCK, BLOCKS_IN_SEGMENT), 0)
            assert all_found(store, IN_FILE) == written
            store.close()
        again = opened(tmp_path)
        assert all_found(again, IN_FILE) == written
        assert again.write(key(20), content(20))  # there is room again
        assert all_found(again, [*IN_FILE, 20]) == [*written, 20]
        again.close()
        again.empty()


def test_writing_goes_on_when_the_disk_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    disk = FullDisk(monkeypatch, segment.HEADER_BYTES + 2 * BLOCK + 100)
    assert [store.write(key(n), content(n)) for n in range(5)] == [True, True, False, False, False]
    assert files(tmp_path)[0].stat().st_size == segment.HEADER_BYTES + 2 * BLOCK
    disk.left = 1_000_000
    assert store.write(key(3), content(3))
    assert all_found(store, range(5)) == [0, 1, 3]
    assert files(tmp_path)[0].stat().st_size == segment.HEADER_BYTES + 3 * BLOCK
    assert [record.message for record in caplog.records] == [
        f"prefix store: nothing can be written to {tmp_path / 'store'}: No space left on device"
    ]
    store.close()
    assert all_found(opened(tmp_path), range(5)) == [0, 1, 3]


def test_what_a_failed_write_leaves_does_not_hide_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    assert store.write(key(0), content(0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", lambda descriptor, length: fail())
        FullDisk(patch, 900)
        assert not store.write(key(1), content(1))
    assert files(tmp_path)[0].stat().st_size == segment.HEADER_BYTES + BLOCK + 900
    store.close()
    assert files(tmp_path)[0].stat().st_size == segment.HEADER_BYTES + BLOCK + segment.index_bytes(1)
    assert all_found(opened(tmp_path), range(2)) == [0]


def test_a_segment_that_its_process_seals_at_this_moment_is_not_taken_for_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    assert store.write(key(0), content(0))

    really = directory.Directory.open

    def open_(self: directory.Directory, name: str, *, writes: bool = False) -> directory.OpenFile:
        if writes:  # to lock and to seal it
            monkeypatch.undo()
            assert store.write(key(1), content(1))
            store.close()
        return really(self, name, writes=writes)

    monkeypatch.setattr(directory.Directory, "open", open_)
    assert all_found(opened(tmp_path), range(3)) == [0, 1]
    after = opened(tmp_path)
    assert all_found(after, range(3)) == [0, 1]
    assert list(after.verify()) == []


def test_a_store_that_is_emptied_while_it_writes_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    assert store.write(key(0), content(0))
    really = os.pwritev

    def pwritev(descriptor: int, views: list[memoryview], offset: int) -> int:
        monkeypatch.undo()
        store.empty()
        return really(descriptor, views, offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    assert not store.write(key(1), content(1))
    assert store.write(key(2), content(2))
    assert all_found(store, range(3)) == [2]


def test_an_error_behind_some_blocks_costs_the_first_that_it_hits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(path)
    really = os.preadv
    limit = segment.HEADER_BYTES + 2 * BLOCK + 500

    def preadv(descriptor: int, views: list[memoryview], offset: int) -> int:
        if offset >= limit:
            fail()
        data = bytearray(sum(view.nbytes for view in views))
        read = really(descriptor, [memoryview(data)[: limit - offset]], offset)
        for view in views:
            view[:] = data[: view.nbytes]
            del data[: view.nbytes]
        return read

    monkeypatch.setattr(os, "preadv", preadv)
    assert store.read([key(n) for n in IN_FILE], [bytearray(BLOCK_BYTES) for _ in IN_FILE]) == 2
    monkeypatch.undo()
    assert all_found(store, IN_FILE) == without(2)


def fail(*arguments: object, **options: object) -> int:
    raise OSError(5, "Input/output error")


def of_another_version(data: bytes) -> bytes:
    facts = bytearray(data[:496])
    facts[16] += 1
    digest: bytes = xxhash.xxh3_128_digest(bytes(facts))
    return bytes(facts) + digest + data[512:]


@pytest.mark.parametrize("spoil", [of_another_version, lambda data: b"some other file"])
def test_files_of_other_versions_are_not_read_and_go_first(
    tmp_path: Path, spoil: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, range(80))
    for file in files(tmp_path)[5:7]:
        file.write_bytes(spoil(file.read_bytes()).ljust(2000))
    strange = files(tmp_path)[5:7]
    store = opened(tmp_path)
    assert caplog.text.count("it is of another version, or damaged") == 2
    assert [each.segment for each in store.verify()] == [each.name for each in strange]
    for n in range(100, 132):
        assert store.write(key(n), content(n))
    assert not any(file.exists() for file in strange)
    assert found(store, 8 * 4)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_of_others_are_not_read(tmp_path: Path) -> None:
    filled(tmp_path, range(24))
    one, two, three = files(tmp_path)
    os.chown(one, 12345, 12345)
    two.chmod(stat.S_IMODE(two.stat().st_mode) | stat.S_IWOTH)
    linked = three.rename(tmp_path / "elsewhere")
    three.symlink_to(linked)
    assert all_found(opened(tmp_path), range(24)) == []


def test_readers_of_a_deleted_segment_finish(tmp_path: Path) -> None:
    filled(tmp_path, range(8))
    store = opened(tmp_path)
    assert found(store, 0)
    BlockStore.open(tmp_path / "store", UNLIMITED).empty()
    assert found(store, 1)  # it has the file open
    store.refresh()
    assert all_found(store, range(8)) == []
