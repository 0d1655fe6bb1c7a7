"""Processes that write into one store and are killed; run as `python -m tests.prefix_store.processes DIRECTORY ROUNDS SEED`.

It has a process of its own because it forks, which those with threads had better not do. Prints a line of JSON, see `main`.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from dragoman.prefix_store import BlockStore
from dragoman.prefix_store.store import UNLIMITED
from tests.prefix_store.blocks import content, found, key

BUDGET = 6 << 20
SEGMENT = 400_000
NUM_BLOCKS = 400  # of 10 MB, more than the budget: they come and go
MEAN_LIFE_S = 0.004


def size(number: int) -> int:
    """Some blocks are so large that a process is killed while it writes one."""
    return 150_000 if number % 7 == 0 else 3_000


def opened(path: Path) -> BlockStore:
    return BlockStore.open(path, BUDGET, segment_bytes=SEGMENT)


@contextmanager
def writer(path: Path, first: int, step: int = 1, pause_s: float = 0.0) -> Iterator[tuple[int, int]]:
    """A process that writes blocks until it is killed: its number, and where it tells each that is written."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        store = opened(path)
        for number in (n % NUM_BLOCKS for n in itertools.count(first, step)):
            if key(number) not in store and store.write(key(number), content(number, size(number))):
                os.write(tell, number.to_bytes(4, "big"))
                time.sleep(pause_s)
    os.close(tell)
    try:
        yield child, told
    finally:
        os.close(told)


def kill(child: int, told: int, data: bytes = b"") -> list[int]:
    """End a process; return what it has told. `data`: what was read of that."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    data += b"".join(iter(lambda: os.read(told, 1 << 16), b""))
    return [int.from_bytes(data[i : i + 4], "big") for i in range(0, len(data), 4)]


def total(path: Path) -> int:
    """All bytes at one moment: nobody begins or deletes a segment meanwhile."""
    with (path / "lock").open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return sum(file.stat().st_size for file in path.glob("*.blocks"))


def main(path: Path, rounds: int, seed: int) -> None:
    """Kill writers at random moments while another one writes and a third reads.

    Prints how many blocks were written by those that were killed and how many of these are lost, what is damaged in the
    end, and the most bytes that the directory had.
    """
    chance = random.Random(seed)
    for number in range(NUM_BLOCKS):
        content(number, size(number))
    num_written = num_lost = most = 0
    reading = opened(path)
    with writer(path, NUM_BLOCKS // 2, 3, pause_s=0.002) as (steady, steady_told):
        for each in range(rounds):
            with writer(path, chance.randrange(NUM_BLOCKS)) as (child, told):
                first = os.read(told, 4) if each % 2 else b""  # every other one while it opens the store, or soon after
                time.sleep(chance.uniform(0, 2 * MEAN_LIFE_S))
                written = kill(child, told, first)
            left = set(path.glob(f"*-{child}-*"))
            most = max(most, total(path))
            after = opened(path)
            reading.refresh()
            last = written[-5:]  # none has deleted these for want of room, unless the others got far ahead meanwhile
            lost = [n for n in last if not (found(after, n, size(n)) and found(reading, n, size(n)))]
            num_written += len(last)
            num_lost += len(lost) if left and left <= set(path.glob(f"*-{child}-*")) else 0
            after.close()
        kill(steady, steady_told)
    reading.close()
    damaged = list(BlockStore.open(path, UNLIMITED).verify())
    print(json.dumps({"written": num_written, "lost": num_lost, "damaged": damaged, "most": most}))


if __name__ == "__main__":
    with patch("os.fsync"):  # what a process wrote outlives it without
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
