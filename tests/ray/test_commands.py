"""Serve's own commands with the example's file, on a cluster of one machine: run, deploy, and replicas that come and go.

Needs Ray (`make test-ray`); skipped where it is not installed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.ray.test_serve import PATIENCE_S, QUESTION, answers, until
from tests.support.server_process import free_port

pytest.importorskip("ray", reason="Ray is not installed; see `make test-ray`")

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray" / "config.yaml"
COMMANDS = Path(sys.executable).parent
ENVIRON = {
    **os.environ,
    "RAY_AUTH_MODE": "disabled",  # the cluster listens on this machine alone
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "OMP_NUM_THREADS": "1",
}
SCALING = (
    "{min_replicas: 1, max_replicas: 2, target_ongoing_requests: 2, upscale_delay_s: 1, downscale_delay_s: 2, "
    "metrics_interval_s: 1, look_back_period_s: 2}"
)


@dataclass
class Cluster:
    """A cluster of one machine. `dashboard`: where Serve's commands are sent; `file`: the example's, made small."""

    address: str
    dashboard: str
    file: Path
    url: str

    def engines(self) -> dict[str, int]:
        """How many replicas of `Engine` are in which state; none while there is no application."""
        with suppress(httpx.TransportError):
            told = httpx.get(f"{self.dashboard}/api/serve/applications/", timeout=PATIENCE_S)
            if told.status_code == 200:
                deployments = told.json()["applications"].get("demo", {}).get("deployments", {})
                states = [one["state"] for one in deployments.get("Engine", {}).get("replicas", [])]
                return {state: states.count(state) for state in states}
        return {}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    directory = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # its sockets' names must be short
    port, dashboard, http = free_port(), free_port(), free_port()
    text = EXAMPLE.read_text(encoding="utf-8")
    for before, after in {
        "port: 8080": f"port: {http}",
        "num_cpus: 1": "num_cpus: 0.5\n      kv_cache_gb: 0.0625\n      dtype: f32",
        "max_num_seqs: 16": "max_num_seqs: 2",
        "health_check_period_s: 5": f"autoscaling_config: {SCALING}",
    }.items():
        assert text.count(before) == 1
        text = text.replace(before, after)
    (directory / "config.yaml").write_text(text, encoding="utf-8")
    words = [
        "start", "--head", "--block", "--num-cpus", "2", "--object-store-memory", "100000000", "--node-ip-address",
        "127.0.0.1", "--port", str(port), "--dashboard-port", str(dashboard), "--temp-dir", str(directory / "ray"),
    ]  # fmt: skip
    with (directory / "log").open("w") as log:
        head = subprocess.Popen([COMMANDS / "ray", *words], env=ENVIRON, stdout=log, stderr=subprocess.STDOUT)
    found = Cluster(
        f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}", directory / "config.yaml", f"http://127.0.0.1:{http}"
    )
    try:
        until(lambda: answers(f"{found.dashboard}/api/version"))
        yield found
    finally:
        head.terminate()
        with suppress(subprocess.TimeoutExpired):
            head.wait(60)
        head.kill()
        head.wait()
        shutil.rmtree(directory, ignore_errors=True)


def say(url: str) -> str:
    body = {**QUESTION, "max_tokens": 8}
    text: str = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE_S).json()["choices"][0]["text"]
    return text


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Lets commands take an interrupt, even if a shell that runs the tests in the background has them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_serve_run_serves_until_it_is_interrupted(cluster: Cluster) -> None:
    running = subprocess.Popen(
        [COMMANDS / "serve", "run", "--address", cluster.address, str(cluster.file)],
        env=ENVIRON, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=EXAMPLE.parents[2],
    )  # fmt: skip
    try:
        until(lambda: running.poll() is not None or answers(f"{cluster.url}/ping"))
        assert say(cluster.url) == "\n\nDeep learning is a kind of"
        running.send_signal(signal.SIGINT)
        running.wait(PATIENCE_S)
        until(lambda: not answers(f"{cluster.url}/ping"))
    finally:
        running.kill()
        running.wait()


def test_what_serve_deploys_grows_under_load_and_shrinks_again(cluster: Cluster) -> None:
    deploy = [str(COMMANDS / "serve"), "deploy", "--address", cluster.dashboard, str(cluster.file)]
    subprocess.run(deploy, env=ENVIRON, check=True, timeout=PATIENCE_S, stdout=subprocess.DEVNULL)
    until(lambda: cluster.engines() == {"RUNNING": 1} and answers(f"{cluster.url}/ping"))
    assert say(cluster.url) == "\n\nDeep learning is a kind of"
    has_grown = threading.Event()
    body = {**QUESTION, "max_tokens": 400, "ignore_eos": True, "stream": True}

    def ask() -> None:
        while not has_grown.is_set():
            with httpx.stream("POST", f"{cluster.url}/v1/completions", json=body, timeout=PATIENCE_S) as answer:
                for _ in answer.iter_lines():
                    if has_grown.is_set():
                        return

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask) for _ in range(8)]
        try:
            until(lambda: cluster.engines().get("RUNNING") == 2)
        finally:
            has_grown.set()
        for one in asking:
            one.result()
    until(lambda: cluster.engines() == {"RUNNING": 1})
    assert say(cluster.url) == "\n\nDeep learning is a kind of"
