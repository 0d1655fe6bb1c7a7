"""Blocks in, blocks out: budget, leases, several stores on one directory."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from dragoman.prefix_store import BlockStore

BLOCK_BYTES = 1000


def key(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def content(number: int, size: int = BLOCK_BYTES) -> bytes:
    return np.random.default_rng(number).bytes(size)


def found(store: BlockStore, number: int, size: int = BLOCK_BYTES) -> bool:
    """True if the store has the block; checks its bytes."""
    into = bytearray(size)
    if not store.read([key(number)], [into]):
        return False
    assert bytes(into) == content(number, size)
    return True


def open_store(path: Path, budget: int = 100_000, segment: int = 10_000) -> BlockStore:
    return BlockStore.open(path / "store", budget, segment_bytes=segment)


def test_what_was_written_is_found_by_it_by_others_and_after_it_is_opened_again(tmp_path: Path) -> None:
    store, other = open_store(tmp_path), open_store(tmp_path)
    assert all(store.write(key(n), content(n)) for n in range(20))
    assert key(0) not in other
    other.refresh()
    for each in (store, other):
        assert all(found(each, n) for n in range(20))
    store.close()
    other.close()
    again = open_store(tmp_path)
    into = [bytearray(BLOCK_BYTES) for _ in range(21)]
    assert again.read([key(n) for n in range(21)], into) == 20
    assert [bytes(each) for each in into[:20]] == [content(n) for n in range(20)]


@pytest.mark.parametrize("dtype", [np.float32, "bfloat16"])
def test_arrays_of_any_type_go_in_and_out_in_parts(tmp_path: Path, dtype: str | type) -> None:
    pytest.importorskip("ml_dtypes")
    parts = [np.arange(6).reshape(2, 3).astype(dtype), np.arange(10, 14).astype(dtype)]
    store = open_store(tmp_path)
    assert store.write(key(0), parts)
    into = [np.zeros_like(part) for part in parts]
    assert store.read([key(0)], [into]) == 1
    assert all((a == b).all() for a, b in zip(parts, into, strict=True))


def test_the_directory_never_has_more_than_the_budget_and_the_least_recently_used_go_first(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for n in range(300):
        assert store.write(key(n), content(n))
        store.touch([key(0)])
        assert sum(file.stat().st_size for file in (tmp_path / "store").iterdir()) <= 100_000
    held = [n for n in range(300) if found(store, n)]
    assert held[0] == 0
    assert held[-60:] == list(range(240, 300))
