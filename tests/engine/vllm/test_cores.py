"""How the cores are divided among vLLM's processes on a processor; `test_itself` asks vLLM to run so."""

from __future__ import annotations

import pytest

from dragoman.cores import Topology
from dragoman.engine.vllm.surface import divide

FOUR = (frozenset({0, 4}), frozenset({1, 5}), frozenset({2, 6}), frozenset({3, 7}))
NODES = (frozenset({0, 1, 4, 5}), frozenset({2, 3, 6, 7}))


@pytest.mark.parametrize(("count", "text"), [(2, "4,5|6,7"), (3, "4|5|6"), (4, "4|5|6|7"), (5, "nobind")])
def test_each_process_has_as_many_neighbouring_cores_and_one_thread_of_each(count: int, text: str) -> None:
    machine = Topology(frozenset(range(8)), FOUR, (frozenset(range(8)),))
    assert divide({"tensor_parallel_size": count}, machine) == text


def test_vllm_places_processes_itself_where_there_is_a_memory_node_for_each() -> None:
    machine = Topology(frozenset(range(8)), FOUR, NODES)
    assert divide({}, machine) is None
    assert divide({"tensor_parallel_size": 2, "pipeline_parallel_size": None}, machine) is None
    assert divide({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, machine) == "4|5|6|7"
