"""Who gets which cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.cli.placing import placement_of
from dragoman.config.resolve import demo_model_dir, resolve
from dragoman.cores import CoreError, Placement, Topology, apply, parse_cores, place, read_topology
from dragoman.nodes.engine import node_placements, placements_of
from tests.support.machines import write_machine


def machine(root: Path, cores: int, sockets: int = 1, threads: int = 1) -> Topology:
    write_machine(root, cores=cores, sockets=sockets, threads=threads)
    return read_topology(root, frozenset(range(cores * sockets * threads)))


def on(kernels: str, http: str) -> Placement:
    return Placement(parse_cores(kernels), parse_cores(http))


@pytest.mark.parametrize(
    ("cores", "threads", "expected"),
    [
        (7, 1, Placement()),  # too few to divide: the runtime does as it likes
        (4, 2, Placement()),
        (8, 1, on("0-6", "7")),
        (8, 2, on("0-6", "7,15")),  # one thread of each core, and a core with both of its threads
        (32, 1, on("0-29", "30-31")),
        (64, 2, on("0-59", "60-63,124-127")),
    ],
)
def test_of_enough_cores_http_gets_some(tmp_path: Path, cores: int, threads: int, expected: Placement) -> None:
    assert place(machine(tmp_path, cores, threads=threads)) == expected


def test_nothing_is_kept_for_http_where_it_shares(tmp_path: Path) -> None:
    topology = machine(tmp_path, 8)
    assert place(topology, is_split=False) == Placement()
    assert place(topology, parse_cores("0-3"), is_split=False) == on("0-3", "0-3")


def test_http_gets_what_chosen_kernels_leave(tmp_path: Path) -> None:
    topology = machine(tmp_path, 4, threads=2)
    assert place(topology, parse_cores("0-2")) == on("0-2", "3,7")  # a core of its own rather than second threads
    assert place(topology, parse_cores("0-3")) == on("0-3", "4-7")
    assert place(topology, parse_cores("0-7")) == on("0-7", "0-7")
    assert place(topology, parse_cores("0-1"), parse_cores("1,2")) == on("0-1", "1-2")


def test_kernels_get_what_chosen_http_leaves(tmp_path: Path) -> None:
    topology = machine(tmp_path, 4, threads=2)
    assert place(topology, http=parse_cores("0")) == on("1-3", "0")
    assert place(topology, http=parse_cores("4-7")) == on("0-3", "4-7")
    with pytest.raises(CoreError, match="must leave the kernels at least one core of 0-7"):
        place(topology, http=parse_cores("0-7"))


def test_only_cores_that_the_process_may_use_are_taken(tmp_path: Path) -> None:
    topology = machine(tmp_path, 4).within(parse_cores("0-2"))
    with pytest.raises(CoreError, match="must be cores that this process may use: 0-2") as raised:
        place(topology, kernels=parse_cores("2-3"))
    assert raised.value.option == "cores"
    with pytest.raises(CoreError) as raised:
        place(topology, http=parse_cores("3"))
    assert raised.value.option == "http_cores"


def test_a_quota_bounds_threads_and_ties_none(tmp_path: Path) -> None:
    topology = replace(machine(tmp_path, 64), quota=4.5)
    assert place(topology) == Placement(num_threads=4, is_tied=False)
    assert place(replace(topology, quota=0.5)).num_threads == 1
    assert place(replace(topology, quota=64.0)) == on("0-59", "60-63")
    assert place(topology, parse_cores("0-3")).num_threads is None  # who names cores knows


def test_each_node_has_its_kernels_and_its_part_of_http(tmp_path: Path) -> None:
    topology = machine(tmp_path, 32, sockets=2, threads=2)
    assert node_placements("auto", "auto", topology) == (
        on("0-29", "30-31,94-95"),
        on("32-61", "62-63,126-127"),
    )
    assert node_placements("0-3/32-35", "auto", topology) == (on("0-3", "0-3"), on("32-35", "32-35"))
    assert node_placements("auto", "0,64", topology) == (on("1-31,65-95", "0,64"), on("32-63,96-127", "0,64"))
    with pytest.raises(CoreError, match="must be cores that this process may use"):
        node_placements("0/200", "auto", topology)
    with pytest.raises(CoreError, match="must leave at least one core to each node"):
        node_placements("0/1", "0", topology)


def test_nodes_that_were_chosen_stay_when_the_server_keeps_to_its_own_cores(tmp_path: Path) -> None:
    config = resolve([], {}, demo_model_dir())
    config = replace(config, server=replace(config.server, numa="auto"))
    placement = placement_of(config, machine(tmp_path, 8, sockets=2))
    assert placement.nodes == (on("0-6", "7"), on("8-14", "15"))
    assert placement.kernels == placement.http == parse_cores("7,15")
    apply(replace(placement, kernels=None, http=None))  # this process stays where it is
    try:
        assert placements_of(config) == placement.nodes
    finally:
        apply(Placement())


def test_one_node_needs_no_processes(tmp_path: Path) -> None:
    config = resolve([], {}, demo_model_dir())
    config = replace(config, server=replace(config.server, numa="auto"))
    assert placement_of(config, machine(tmp_path, 8)) == on("0-6", "7")
    assert not placement_of(config, machine(tmp_path, 4)).nodes
