"""Chooses the cores of a server by its options. Called by `main`, on the main thread, before the runtime is imported."""

from __future__ import annotations

from dragoman.config.resolve import Config
from dragoman.cores import CoreError, Cores, Placement, Topology, apply, parse_cores, place, read_topology


def choose_cores(config: Config) -> str:
    """Put this process on the cores of its options. Returns the problem, "" = none."""
    try:
        topology = read_topology()
    except AttributeError:  # not on Linux: the system places threads
        return "" if is_left_to_system(config) else "cores, http_cores and numa: must be left out; only Linux has them"
    try:
        apply(placement_of(config, topology))
    except CoreError as error:
        return f"{config.cite(error.option)}: {error}"
    except OSError as error:  # some containers forbid it
        return "" if is_left_to_system(config) else f"cores, http_cores and numa: must be left out here: {error}"
    return ""


def is_left_to_system(config: Config) -> bool:
    return (config.server.cores, config.server.http_cores, config.server.numa) == ("auto", "auto", "off")


def placement_of(config: Config, topology: Topology) -> Placement:
    """The cores for the threads of a server. Raises: CoreError if its options do not fit the machine."""
    server = config.server
    kernels = None if server.cores == "auto" else parse_cores(server.cores)
    http = None if server.http_cores in ("auto", "shared") else parse_cores(server.http_cores)
    if server.numa != "off":
        if kernels is not None:
            raise CoreError("cores", "must be auto with numa, which sets the cores of each engine")
        return _in_front_of_nodes(server.numa, server.http_cores, topology)
    if kernels is None and http is None and config.engine.engine != "rolling":
        return Placement()
    return place(topology, kernels, http, is_split=server.http_cores != "shared")


def _in_front_of_nodes(numa: str, http_cores: str, topology: Topology) -> Placement:
    """The placement of a server in front of nodes: the cores that these leave to HTTP, or all."""
    from dragoman.nodes.engine import node_placements

    try:
        placements = node_placements(numa, http_cores, topology)
    except CoreError as error:
        raise CoreError("numa" if error.option == "cores" else error.option, str(error)) from error
    if numa == "auto" and len(placements) == 1:
        chosen = None if http_cores in ("auto", "shared") else parse_cores(http_cores)
        return place(topology, None, chosen, is_split=http_cores != "shared")
    cores: Cores = frozenset()
    for placement in placements:
        if placement.http is not None and placement.http != placement.kernels:
            cores |= placement.http
    if http_cores not in ("auto", "shared"):
        cores = parse_cores(http_cores)
    return Placement(cores or None, cores or None, nodes=placements)
