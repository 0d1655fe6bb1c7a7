"""Writes what Linux tells of a machine's cores, for machines that are not there."""

from __future__ import annotations

from pathlib import Path


def write_machine(root: Path, *, cores: int, sockets: int, threads: int) -> None:
    """`cores`: physical ones of each socket, which is a memory node. Second threads are numbered after all first ones."""
    physical = cores * sockets
    for number in range(physical * threads):
        siblings = ",".join(str(number % physical + physical * thread) for thread in range(threads))
        _write(root / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list", siblings)
    for socket in range(sockets):
        first = socket * cores
        runs = [f"{first + physical * one}-{first + cores - 1 + physical * one}" for one in range(threads)]
        _write(root / f"sys/devices/system/node/node{socket}/cpulist", ",".join(runs))


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")
