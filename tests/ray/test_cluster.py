"""`dragoman serve --engine ray` in front of an application that has engines alone, two replicas on this machine.

What Serve's proxy cannot pass on is here as from any other `dragoman serve`: trailers, a drain, the request's id. Needs Ray
(`make test-ray`); skipped where it is not installed. The tests share one application, and the one server.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

from dragoman.server.run import EXIT_ENGINE_FAILED
from tests.ray.test_serve import LONG, PATIENCE_S, QUESTION, RUNNING, Outcome, answers, ask, replicas, until
from tests.support.server_process import ServerProcess, free_port, serve

ray = pytest.importorskip("ray", reason="Ray is not installed; see `make test-ray`")
ray_serve = pytest.importorskip("ray.serve")

ANSWER = "\n\nDeep learning is a kind of"
PROXY = free_port()
ENVIRON = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
STREAM = {**QUESTION, "max_tokens": LONG, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[str, ...]]:
    """The arguments of a server in front of them."""
    from dragoman.ray import build

    os.environ.update(ENVIRON, RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S="60")
    ray.init(
        "local", num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, _node_ip_address="127.0.0.1",
        namespace="serve", log_to_driver=False,
    )  # fmt: skip
    try:
        with suppress(TimeoutError):  # on a busy machine the proxy takes longer than Serve waits
            ray_serve.start(http_options={"host": "127.0.0.1", "port": PROXY})
        options = {"dtype": "f32", "max_num_seqs": RUNNING, "kv_cache_gb": 0.0625, "speculation": "off"}
        application = build({"num_servers": 0, "num_replicas": 2, "num_cpus": 0.5, **options})
        ray_serve.run(application, name="engines", route_prefix="/engines")
        yield "--engine", "ray", "--ray-address", ray.get_runtime_context().gcs_address, "--ray-application", "engines"
    finally:
        ray_serve.shutdown()
        ray.shutdown()


@pytest.fixture(scope="module")
def server(engines: tuple[str, ...]) -> Iterator[ServerProcess]:
    with serve(*engines, environ=ENVIRON, patience_s=PATIENCE_S) as running:
        yield running


def num_running() -> int:
    return sum(one.engine.num_running + one.engine.num_waiting for one in replicas("engines").values())


def test_answers_come_from_the_replicas_with_the_ids_of_this_server(server: ServerProcess) -> None:
    before = sum(one.stats.num_generated_tokens for one in replicas("engines").values())
    body = {**QUESTION, "max_tokens": 8}
    answer = httpx.post(f"{server.base_url}/v1/completions", json=body, headers={"x-request-id": "mine"}, timeout=60)
    assert answer.json()["choices"][0]["text"] == ANSWER
    assert answer.headers["x-request-id"] == "mine"
    assert sum(one.stats.num_generated_tokens for one in replicas("engines").values()) >= before + 7


def test_trailers_reach_the_client(server: ServerProcess) -> None:
    body = json.dumps({"id": "1", "prompt": QUESTION["prompt"], "maxLength": 8}).encode()
    head = (
        "POST /api/generate-one HTTP/1.1", "host: localhost", "content-type: application/json", "te: trailers",
        "connection: close", f"content-length: {len(body)}",
    )  # fmt: skip
    with socket.create_connection(("127.0.0.1", httpx.URL(server.base_url).port or 0), PATIENCE_S) as connection:
        connection.sendall("\r\n".join((*head, "", "")).encode() + body)
        told = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b"\r\ntrailer: X-Status, X-Finish-Reason\r\n" in told
    assert told.endswith(b"0\r\nx-status: 206\r\nx-finish-reason: length\r\n\r\n")


def test_the_proxy_says_who_answers(engines: tuple[str, ...]) -> None:
    until(lambda: answers(f"http://127.0.0.1:{PROXY}/-/healthz"))
    answer = httpx.post(f"http://127.0.0.1:{PROXY}/engines/v1/completions", json=QUESTION, timeout=PATIENCE_S)
    assert answer.status_code == 404
    assert "--engine ray" in answer.text


def test_a_client_that_leaves_ends_its_request_on_the_replica(server: ServerProcess) -> None:
    with httpx.stream("POST", f"{server.base_url}/v1/completions", json=STREAM, timeout=PATIENCE_S) as answer:
        next(answer.iter_raw())
    until(lambda: num_running() == 0)


def test_a_killed_replica_costs_no_answer_that_had_not_begun(server: ServerProcess) -> None:
    whole = {**QUESTION, "max_tokens": LONG, "ignore_eos": True}
    outcomes = [Outcome() for _ in range(2 * RUNNING)]
    victim, _ = replicas("engines").values()
    with ThreadPoolExecutor(len(outcomes)) as pool:
        futures = [pool.submit(ask, server.base_url, "/v1/completions", whole, one) for one in outcomes]
        until(lambda: server.metrics()["dragoman_requests_running"] > RUNNING)  # on both of them
        os.kill(victim.pid, signal.SIGKILL)
        for future in futures:
            future.result()
    assert [one.status for one in outcomes] == [200] * len(outcomes)
    texts = {json.loads(one.lines[0])["choices"][0]["text"] for one in outcomes}
    assert len(texts) == 1, "a second replica gives the answer that the first would have given"


def test_it_finishes_its_requests_when_it_is_told_to_end(engines: tuple[str, ...]) -> None:
    outcome = Outcome()
    with serve(*engines, environ=ENVIRON, patience_s=PATIENCE_S) as server, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask, server.base_url, "/v1/completions", {**STREAM, "max_tokens": 300}, outcome)
        assert outcome.began.wait(PATIENCE_S)
        assert server.terminate() == 0, "".join(server.output[-60:])
        asking.result()
    assert not outcome.was_cut
    assert json.loads(outcome.lines[-1].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("option", "text", "says"),
    [
        ("--ray-application", "engine", "must be an application of dragoman.ray on that cluster; engines is"),
        ("--ray-address", "127.0.0.1:1", "must be a Ray cluster that this machine is part of"),
    ],
)
def test_what_is_not_there_is_told_on_one_line(engines: tuple[str, ...], option: str, text: str, says: str) -> None:
    with (
        pytest.raises(AssertionError, match="stopped before it was ready") as caught,
        serve(
            *engines,
            option,
            text,
            environ=ENVIRON,
            patience_s=PATIENCE_S,
        ),
    ):
        pass
    (line,) = [line for line in str(caught.value).splitlines() if says in line]
    assert f"{option}={text}" in line


def test_it_does_not_wait_for_an_application_that_is_gone(engines: tuple[str, ...]) -> None:
    """The last of these tests: it deletes the application."""
    with serve(*engines, "--on-engine-failure", "exit", environ=ENVIRON, patience_s=PATIENCE_S) as server:
        ray_serve.delete("engines")
        assert server.process.wait(PATIENCE_S) == EXIT_ENGINE_FAILED
        assert any("the application engines is gone" in line for line in server.output)
