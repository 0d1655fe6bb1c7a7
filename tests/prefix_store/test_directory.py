"""Whose directory the store takes, and who may read what it writes there."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.prefix_store import BlockStore, StoreError, directory
from dragoman.prefix_store.store import UNLIMITED
from tests.prefix_store.blocks import BLOCKS_IN_SEGMENT, all_found, content, files, filled, key, open_files, opened

is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away and becomes another user")


def refusal(path: Path) -> str:
    with pytest.raises(StoreError) as raised:
        BlockStore.open(path, 100_000)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_its_user_may_read_it(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        filled(tmp_path / "new" / "directories", range(20))
    finally:
        os.umask(previous)
    path = tmp_path / "new" / "directories" / "store"
    assert mode(path) == 0o700
    assert {mode(file) for file in path.iterdir()} == {0o600}
    path.chmod(0o755)
    opened(tmp_path / "new" / "directories")
    assert mode(path) == 0o700


@pytest.mark.parametrize("others", [0o770, 0o702, 0o777, 0o1777])
def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path, others: int) -> None:
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(others)
    assert refusal(path) == (
        f"{path} has mode {others:o}, which lets other users write to it: `chmod 700 {path}`, "
        "or name a new directory inside it"
    )
    assert mode(path) == others
    filled(path, range(3))
    assert all_found(opened(path), range(3)) == [0, 1, 2]


@is_root
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    path.mkdir(mode=0o700)
    os.chown(path, 12345, 12345)
    assert refusal(path) == (
        f"{path} belongs to user 12345; name a directory of user {os.geteuid()}, or one that does not exist yet"
    )


@is_root
def test_a_directory_that_cannot_be_made_or_read_is_refused(tmp_path: Path) -> None:
    """As another user, since root may do everything."""
    (tmp_path / "closed").mkdir(mode=0o700)
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from dragoman.prefix_store import BlockStore, StoreError\n"
        "os.setuid(12345)\n"
        "try: BlockStore.open(Path(sys.argv[1]), 100_000)\n"
        "except StoreError as error: print(error)\n"
    )
    path = tmp_path / "closed" / "store"
    run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert run.stdout == f"{path} cannot hold the prefix store: Permission denied\n", run.stderr


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert refusal(tmp_path / "link") == f"{tmp_path / 'link'} is a symbolic link; name the directory itself"
    assert not list((tmp_path / "real").iterdir())


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refusal(tmp_path / "file") == f"{tmp_path / 'file'} cannot hold the prefix store: Not a directory"
    assert refusal(tmp_path / "file" / "x").endswith("cannot hold the prefix store: File exists")


def test_a_directory_with_something_else_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    tmp_path.chmod(0o755)
    assert refusal(tmp_path) == (
        f"{tmp_path} holds thesis.tex, which the prefix store did not write; name an empty directory, "
        "or one that does not exist yet"
    )
    assert mode(tmp_path) == 0o755
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_somebody_puts_into_the_store_stays(tmp_path: Path) -> None:
    filled(tmp_path, range(20))
    note = tmp_path / "store" / "README"
    note.write_text("please keep")
    store = opened(tmp_path)
    store.empty()
    assert sorted(file.name for file in (tmp_path / "store").iterdir()) == ["README", "lock"]


def test_the_root_of_a_file_system_will_do(tmp_path: Path) -> None:
    (tmp_path / "store" / "lost+found").mkdir(parents=True)
    (tmp_path / "store").chmod(0o700)
    filled(tmp_path, range(3))


def test_a_store_is_not_made_for_who_only_looks(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file or directory"):
        BlockStore.open(tmp_path / "none", UNLIMITED, create=False)
    assert not (tmp_path / "none").exists()


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    assert refusal(tmp_path / "store").endswith("cannot hold the prefix store: No locks available")


def test_a_process_that_holds_the_lock_and_stands_still_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dragoman.prefix_store.catalogue.LOCK_WAIT_S", 0.01)
    filled(tmp_path, range(3))
    standing = os.open(tmp_path / "store" / "lock", os.O_RDWR)
    fcntl.flock(standing, fcntl.LOCK_EX)
    try:
        store = opened(tmp_path)
        assert all_found(store, range(3)) == [0, 1, 2]
        assert not store.write(key(5), content(5))
        assert "another process holds the lock" in caplog.text
        store.refresh()
        with pytest.raises(StoreError, match="another process holds the lock"):
            store.empty()
    finally:
        os.close(standing)
    assert store.write(key(5), content(5))


def test_a_lock_that_somebody_deleted_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if that happened between opening and locking it: others lock the new one."""
    store = opened(tmp_path)
    lock = tmp_path / "store" / "lock"
    lock.unlink()
    assert store.write(key(0), content(0))
    assert lock.exists()
    really = directory.OpenFile.try_lock

    def try_lock(file: directory.OpenFile) -> bool:
        monkeypatch.undo()
        lock.unlink()
        return really(file)

    monkeypatch.setattr(directory.OpenFile, "try_lock", try_lock)
    for n in range(1, BLOCKS_IN_SEGMENT + 1):  # the last begins a segment
        assert store.write(key(n), content(n))
    assert lock.exists()


def test_few_files_are_open_at_a_time_and_none_in_the_end(tmp_path: Path) -> None:
    store = opened(tmp_path, 1_000_000)
    assert all(store.write(key(n), content(n)) for n in range(400))
    assert all_found(store, range(400)) == list(range(400))
    assert len(files(tmp_path)) == 50
    assert len(open_files(tmp_path)) < 40
    store.close()
    assert open_files(tmp_path) in ([str(tmp_path / "store")], [])
    del store
    assert not open_files(tmp_path)
