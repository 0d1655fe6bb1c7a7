"""vLLM's Ray executor: a model divided between two nodes of a Ray cluster, behind our APIs, on the demo model.

The nodes are on this machine and compute on its processors, which vLLM itself refuses Ray (`tests/support/ray_devices.py`).
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from tests.support.ray_devices import two_nodes
from tests.support.server_process import ServerProcess, serve
from tests.support.threads import is_running

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        not (find_spec("vllm") and find_spec("ray")), reason="vllm and ray are not installed: make test-vllm"
    ),
]

COMMON = ("--dtype", "f32", "--max-model-len", "256", "--kv-cache-gb", "0.125")
ON_RAY = ("--engine", "vllm", *COMMON, "--distributed-executor-backend", "ray")
TENSOR = ("--tensor-parallel-degree", "2", "--enforce-eager", "true")
PIPELINE = ("--pipeline-parallel-degree", "2")  # vLLM's pipeline on a processor needs its compiler
BODY = {"model": "demo", "prompt": "What is deep learning?", "max_tokens": 24, "temperature": 0}
LONG = {**BODY, "max_tokens": 200, "ignore_eos": True, "stream": True}
PATIENCE_S = 600.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which a server finds it."""
    with two_nodes(tmp_path_factory.mktemp("platform")) as environ:
        yield environ


def answer(server: ServerProcess) -> str:
    """What it completes."""
    told = httpx.post(f"{server.base_url}/v1/completions", json=BODY, timeout=PATIENCE_S)
    assert told.status_code == 200, told.text
    text: str = told.json()["choices"][0]["text"]
    return text


@pytest.fixture(scope="module")
def expected() -> str:
    """What the built-in engine completes."""
    with serve(*COMMON) as server:
        return answer(server)


def workers() -> list[int]:
    """The processes in which Ray has a part of a model of vLLM's."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"RayWorker" in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # it has just ended
            continue
    return found


def wait_ended(processes: list[int]) -> None:
    """Return once none of them is left."""
    end = time.monotonic() + 60
    while left := [process for process in processes if is_running(process)]:
        assert time.monotonic() < end, left


@pytest.mark.parametrize("divided", [TENSOR, PIPELINE], ids=["tensor", "pipeline"])
def test_a_model_on_two_nodes_answers_as_the_built_in_engine_and_leaves_the_cluster_free(
    divided: tuple[str, ...], cluster: dict[str, str], expected: str
) -> None:
    with serve(*ON_RAY, *divided, environ=cluster, patience_s=PATIENCE_S) as server:
        assert answer(server) == expected
        with httpx.stream("POST", f"{server.base_url}/v1/completions", json=LONG, timeout=PATIENCE_S) as left:
            next(left.iter_lines())
        while server.metrics()["vllm:num_requests_running"]:
            assert server.process.poll() is None
        parts = workers()
        assert len(parts) == 2
        assert server.terminate() == 0
    wait_ended(parts)


def test_when_a_node_loses_its_part_what_runs_fails_and_the_server_answers_again_by_itself(
    cluster: dict[str, str], expected: str
) -> None:
    with serve(*ON_RAY, *TENSOR, environ=cluster, patience_s=PATIENCE_S) as server:
        url = f"{server.base_url}/v1/completions"
        with httpx.stream("POST", url, json={**LONG, "n": 8}, timeout=PATIENCE_S) as running:
            lines = running.iter_lines()
            next(lines)
            os.kill(workers()[0], signal.SIGKILL)
            told = [line for line in lines if line.startswith("data: {")]
        assert "vLLM's engine has died" in json.loads(told[-1][6:])["error"]["message"]
        while httpx.get(f"{server.base_url}/ping", timeout=PATIENCE_S).status_code != 200:
            assert server.process.poll() is None
        assert answer(server) == expected
        assert server.metrics()["dragoman_engine_restarts_total"] == 1
        parts = workers()
        assert server.terminate() == 0
    wait_ended(parts)
