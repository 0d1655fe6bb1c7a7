"""How the cores are divided among vLLM's processes on a processor; `test_itself` asks vLLM to run so."""

from __future__ import annotations

import os

import pytest

from dragoman.cores.topology import Topology
from dragoman.engine.vllm import cores
from dragoman.engine.vllm.cores import VARIABLE, divide, divided_cores

FOUR = (frozenset({0, 4}), frozenset({1, 5}), frozenset({2, 6}), frozenset({3, 7}))


@pytest.mark.parametrize(
    ("count", "text"), [(1, "4,5,6,7"), (2, "4,5|6,7"), (3, "4|5|6"), (4, "4|5|6|7"), (5, "nobind")]
)
def test_each_process_has_as_many_neighbouring_cores_and_one_thread_of_each(count: int, text: str) -> None:
    assert divide(FOUR, count) == text


def test_the_variable_is_set_only_while_processes_start_that_vllm_would_not_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allowed = frozenset(range(8))
    nodes = (frozenset({0, 1, 4, 5}), frozenset({2, 3, 6, 7}))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(cores, "read_topology", lambda: Topology(allowed, FOUR, nodes))
    with divided_cores({"tensor_parallel_size": 2}):
        assert VARIABLE not in os.environ  # a node for each
    with divided_cores({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}):
        assert os.environ[VARIABLE] == "4|5|6|7"
    assert VARIABLE not in os.environ


def test_an_operators_own_choice_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0|0")
    with divided_cores({"tensor_parallel_size": 2}):
        assert os.environ[VARIABLE] == "0|0"
    assert os.environ[VARIABLE] == "0|0"
