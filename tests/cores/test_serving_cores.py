"""Servers whose cores are named: their threads run there."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import httpx
import pytest

from tests.support.server_process import serve, server_python
from tests.support.threads import allowed_cores, thread_cores

HAS_CORES = sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1
pytestmark = pytest.mark.skipif(not HAS_CORES, reason="Linux tells where threads may run, and there must be a choice")


def test_kernels_and_http_run_on_cores_of_their_own() -> None:
    kernel, http = sorted(os.sched_getaffinity(0))[:2]
    with serve("--dtype", "f32", "--cores", str(kernel), "--http-cores", str(http)) as server:
        pid = server.process.pid
        body = {"model": "demo", "prompt": "Deep learning is", "max_tokens": 8, "temperature": 0}
        assert httpx.post(f"{server.base_url}/v1/completions", json=body, timeout=60).status_code == 200
        found = allowed_cores(pid)
        assert thread_cores(pid, pid) == {http}
        assert set(found) == {frozenset({kernel}), frozenset({http})}  # nobody runs on both
        assert found[frozenset({kernel})] >= 2  # what waits for the kernels, and these


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cores", "9999"), r"cores.*9999.*must be cores that this process may use"),
        (("--cores", "3-1"), r"cores.*3-1.*auto, or a list of cores as in 0-3,8"),
        (("--numa", "0/9999"), r"numa.*must be cores that this process may use"),
        (("--numa", "0/1", "--cores", "0"), r"cores.*must be auto with numa"),
    ],
)
def test_cores_that_are_not_there_are_refused_in_a_line(words: tuple[str, ...], message: str) -> None:
    command = [server_python(), "-m", "dragoman", "serve", "--port", "0", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert re.search(message, line), line
