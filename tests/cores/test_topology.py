"""What is read of Linux' own description of a machine."""

from __future__ import annotations

from pathlib import Path

from dragoman.cores import read_topology
from tests.support.machines import write_machine


def test_two_sockets_with_two_threads_a_core(tmp_path: Path) -> None:
    write_machine(tmp_path, cores=4, sockets=2, threads=2)
    topology = read_topology(tmp_path, frozenset(range(16)))
    assert topology.physical == tuple(frozenset({core, core + 8}) for core in range(8))
    assert topology.nodes == (frozenset({0, 1, 2, 3, 8, 9, 10, 11}), frozenset({4, 5, 6, 7, 12, 13, 14, 15}))
    assert topology.quota is None


def test_what_the_process_may_not_use_is_not_there(tmp_path: Path) -> None:
    write_machine(tmp_path, cores=4, sockets=2, threads=2)
    topology = read_topology(tmp_path, frozenset({0, 1, 8}))
    assert topology.physical == (frozenset({0, 8}), frozenset({1}))
    assert topology.nodes == (frozenset({0, 1, 8}),)
    assert topology.within(frozenset({1})).physical == (frozenset({1}),)


def test_nodes_are_in_the_order_of_their_numbers_and_memory_alone_is_none(tmp_path: Path) -> None:
    write_machine(tmp_path, cores=1, sockets=11, threads=1)
    (tmp_path / "sys/devices/system/node/node11").mkdir()
    (tmp_path / "sys/devices/system/node/node11/cpulist").write_text("\n")
    assert read_topology(tmp_path, frozenset(range(11))).nodes == tuple(frozenset({core}) for core in range(11))


def test_where_nothing_is_told_each_core_is_a_physical_one(tmp_path: Path) -> None:
    topology = read_topology(tmp_path, frozenset({0, 1}))
    assert topology.physical == (frozenset({0}), frozenset({1}))
    assert topology.nodes == (frozenset({0, 1}),)


def test_the_narrowest_group_bounds_the_time(tmp_path: Path) -> None:
    for group, limit in (("", "max 100000"), ("a/", "800000 100000"), ("a/b/", "250000 100000")):
        file = tmp_path / f"sys/fs/cgroup/{group}cpu.max"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{limit}\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    assert read_topology(tmp_path, frozenset({0})).quota == 2.5
