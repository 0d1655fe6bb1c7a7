"""First starts on one empty cache: two at once both serve, and one that is killed leaves nothing half written behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from dragoman.files.unfinished import PREFIX
from tests.support.server_process import serve

pytestmark = pytest.mark.full("whole starts; tests/models/test_killed_starts.py kills them at each step")

WORDS = ("--dtype", "f32")


def completion(url: str) -> str:
    body = {"model": "demo", "prompt": "What is deep learning?", "max_tokens": 4, "temperature": 0}
    return str(httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()["choices"][0]["text"])


def kept(cache: Path) -> list[Path]:
    """What is in the cache; one graph, if all is as it should be."""
    return sorted(path for path in cache.iterdir())


def test_two_first_starts_at_once_both_serve_and_keep_one_graph(tmp_path: Path) -> None:
    answers: list[str] = []

    def start() -> None:
        with serve(*WORDS, "--cache-dir", str(tmp_path / "cache")) as server:
            answers.append(completion(server.base_url))

    starts = [threading.Thread(target=start) for _ in range(2)]
    for thread in starts:
        thread.start()
    for thread in starts:
        thread.join()
    assert answers == [answers[0]] * 2
    [graph] = kept(tmp_path / "cache")
    assert graph.suffix == ".blob"


def killed_when(cache: Path, pattern: str) -> None:
    """Start a server, and kill it as soon as a file of that pattern is in its cache."""
    words = [sys.executable, "-m", "dragoman", "serve", "--port", "0", *WORDS, "--cache-dir", str(cache)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    try:
        end_s = time.monotonic() + 60
        while not list(cache.glob(pattern)):
            assert process.poll() is None, "the server ended by itself"
            assert time.monotonic() < end_s, f"{pattern} never appeared"
            os.sched_yield()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)


def test_a_start_that_is_killed_does_not_hurt_the_next(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    killed_when(cache, f"{PREFIX}*/*.blob")
    with serve(*WORDS, "--cache-dir", str(cache)) as server:
        assert completion(server.base_url)
    [graph] = kept(cache)
    assert graph.suffix == ".blob"
