"""The runtime's memory is bounded, however many sizes of steps it computes and in whatever order."""

from __future__ import annotations

import gc
import mmap
import weakref
from pathlib import Path

import numpy as np
import pytest

from dragoman.models.memory import forget_pages, give_back
from tests.support import heaps
from tests.support.frozen import thaw
from tests.support.random_checkpoint import RandomShape, write_checkpoint
from tests.support.step_memory import CAN_TELL, measure

pytestmark = [
    pytest.mark.skipif(not CAN_TELL, reason="memory is read as Linux with glibc tells it"),
    pytest.mark.varies("memory is read from glibc"),
]


@pytest.mark.full("kernels that pile up show only after hundreds of sizes of steps")
def test_kernels_of_ever_new_sizes_of_steps_do_not_pile_up(tmp_path: Path) -> None:
    shape = RandomShape("narrow", seed=4, hidden_size=64, num_layers=1, num_heads=2, num_kv_heads=1)
    sizes = [1 + 97 * i % 521 for i in range(520)]  # each once, in no order
    memory = measure(write_checkpoint(shape, tmp_path), sizes)
    assert memory.after[-1] - memory.after[359] < 10  # so many fill the caches


def test_buffers_that_a_larger_step_replaces_are_given_back(tmp_path: Path) -> None:
    shape = RandomShape("wide", seed=4, hidden_size=64, num_layers=1, num_heads=32, num_kv_heads=1, head_size=64)
    memory = measure(write_checkpoint(shape, tmp_path), range(400, 1600, 30))
    assert memory.after[-1] - memory.needed < 20


@pytest.mark.parametrize(("begin", "end"), [(0, 0), (1, 1), (5, 3), (64, 4000)], ids=str)
def test_forgetting_an_array_touches_nothing_beside_it(begin: int, end: int) -> None:
    memory = np.ones(4 * mmap.PAGESIZE, dtype=np.uint8)
    inside = memory[begin : len(memory) - end]
    forget_pages(inside)
    assert not inside.all()  # its whole pages are empty
    assert memory[:begin].all()
    assert memory[len(memory) - end :].all()


def test_an_array_within_a_page_is_left_alone() -> None:
    memory = np.ones(4 * mmap.PAGESIZE, dtype=np.uint8)
    first = -memory.ctypes.data % mmap.PAGESIZE
    forget_pages(memory[first + 8 : first + mmap.PAGESIZE])
    assert memory.all()


def test_the_threads_of_a_process_share_two_heaps_after_the_first_load(tmp_path: Path) -> None:
    directory = write_checkpoint(RandomShape("tiny", seed=4, hidden_size=64, num_layers=1, num_heads=2), tmp_path)
    assert heaps.measure(directory, {}) <= 2
    assert heaps.measure(directory, {"MALLOC_ARENA_MAX": "5"}) > 2  # the operator's wish goes first


class _Circle:
    def __init__(self) -> None:
        self.itself = self


def test_circles_that_were_there_when_the_server_was_ready_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    circle = _Circle()
    known = weakref.ref(circle)
    monkeypatch.setattr(gc, "unfreeze", thaw)
    gc.freeze()
    try:
        del circle
        gc.collect()
        assert known() is not None
        give_back()
        assert known() is None
    finally:
        gc.freeze()
