"""A server whose output nobody can take: it starts, answers and ends all the same."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import time

import httpx
import pytest

from tests.support.server_process import free_port, server_python


@pytest.mark.full("tests/test_logs.py covers what writes the log; this starts a process")
def test_neither_a_full_disk_nor_an_unread_pipe_stops_the_server() -> None:
    port = free_port()
    command = [server_python(), "-m", "dragoman", "serve", "--port", str(port), "--dtype", "f32"]
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)  # some twenty lines
        until = time.monotonic() + 60
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            while True:
                try:
                    if client.get("/ping").status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.02)
            for _ in range(80):
                answer = client.post("/v1/completions", json={"model": "demo", "prompt": "a", "max_tokens": -1})
                assert answer.status_code == 400
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        told = process.stderr.read().decode()
        assert "what is served cannot be told on the standard output: No space left on device" in told
        assert "error=invalid_parameter param=max_tokens" in told
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
