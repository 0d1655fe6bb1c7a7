"""`dragoman serve --numa`, from the command line to the processes of its nodes."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.patience import wait_until
from tests.support.server_process import ServerProcess, serve
from tests.support.threads import allowed_cores, children, is_running

HAS_CORES = sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1
pytestmark = [
    pytest.mark.skipif(not HAS_CORES, reason="Linux tells where threads may run, and there must be a choice"),
]

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}


def asked(server: ServerProcess, **fields: object) -> httpx.Response:
    body = {"model": "demo", "prompt": "Deep learning is", "max_tokens": 8, "temperature": 0, **fields}
    answer = httpx.post(f"{server.base_url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer


def completed(server: ServerProcess, **fields: object) -> str:
    return str(asked(server, **fields).json()["choices"][0]["text"])


def ignored(server: ServerProcess, **fields: object) -> str:
    return str(asked(server, **fields).headers.get("x-dragoman-ignored", ""))


def test_nodes_run_on_their_cores_outlive_each_other_and_end_with_the_server(tmp_path: Path) -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    words = ("--dtype", "f32", "--max-model-len", "512", "--kv-cache-gb", "0.25")
    with serve(*words) as alone:
        expected = completed(alone)
        caching = {"prompt_cache_key": "a conversation", "prompt_cache_retention": "24h"}
        assert ignored(alone, **caching) == ",".join(caching)
    store = ("--prefix-store-gb", "0.1", "--prefix-store-dir", str(tmp_path / "store"))
    with serve("--numa", f"{first}/{second}", *words, *store) as server:
        nodes = children(server.process.pid)
        found = [allowed_cores(node) for node in nodes]
        assert sorted(sorted(map(sorted, cores)) for cores in found) == [[[first]], [[second]]]
        assert completed(server) == expected
        # nothing is lost by the way to the nodes: grammars, beams, what is drawn
        as_schema = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}
        assert '"x"' in completed(server, response_format=as_schema, max_tokens=32)
        assert completed(server, temperature=1.0, seed=3) == completed(server, temperature=1.0, seed=3)
        # a key chooses a node, and both keep prompts in one place
        assert ignored(server, **caching) == ""
        metrics = httpx.get(f"{server.base_url}/metrics", timeout=30).text
        assert metrics.count("dragoman_upstream_healthy{") == 2

        os.kill(nodes[0], signal.SIGKILL)
        assert completed(server) == expected
        wait_until(lambda: len(children(server.process.pid)) == 2, pause_s=0.05)
        wait_until(lambda: any("has an engine again" in line for line in server.output), pause_s=0.05)
        assert completed(server) == expected

        nodes = children(server.process.pid)
        assert server.terminate() == 0
        assert not any(map(is_running, nodes))


KILLED = pytest.mark.full("kills real processes; test_nodes_engine.py loses nodes that are in this process")


@KILLED
def test_answers_of_which_no_byte_has_gone_out_outlive_the_node_that_computed_them() -> None:
    """Tokens that were lost with it are computed again elsewhere; a seed makes them the same."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    words = ("--dtype", "f32", "--max-model-len", "512", "--kv-cache-gb", "0.25", "--speculation", "off")
    long = {"max_tokens": 480, "ignore_eos": True, "temperature": 1.0, "seed": 3}
    with (
        serve("--numa", f"{first}/{second}", *words) as server,
        ThreadPoolExecutor(4) as pool,
    ):
        victim = children(server.process.pid)[0]
        answers = [pool.submit(completed, server, **long) for _ in range(4)]
        wait_until(lambda: server.metrics()["dragoman_requests_running"] == 4, pause_s=0.05)
        os.kill(victim, signal.SIGKILL)
        assert len({answer.result() for answer in answers}) == 1


@KILLED
def test_nodes_end_when_the_server_is_killed() -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    with serve("--numa", f"{first}/{second}", "--dtype", "f32", "--max-model-len", "256") as server:
        nodes = children(server.process.pid)
        assert len(nodes) == 2
        server.process.kill()
        server.process.wait()
        wait_until(lambda: not any(map(is_running, nodes)), pause_s=0.05)


def test_what_is_wrong_with_a_model_is_told_as_without_nodes() -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    starting = serve("--numa", f"{first}/{second}", "--dtype", "f32", "--kv-dtype", "bf16")
    with pytest.raises(AssertionError, match="kv-dtype 'bf16' does not go with f32 inference"), starting:
        pass  # it does not start
