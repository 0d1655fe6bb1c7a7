"""Starts on unsuitable machines: each ends, or continues, with one helpful line."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from dragoman.cli import main
from tests.support.server_process import serve

SOURCE = Path(__file__).resolve().parents[2] / "src"


def old_python() -> str | None:
    """The path of an unsupported Python, None without one."""
    found = [*map(str, Path.home().glob(".pyenv/versions/3.10.*/bin/python")), shutil.which("python3.10")]
    for path in filter(None, found):  # a name on PATH may only tell that it is not chosen
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


@pytest.mark.skipif(old_python() is None, reason="there is no Python 3.10 here")
def test_a_python_that_is_too_old_gives_one_line() -> None:
    result = subprocess.run(
        [str(old_python()), "-m", "dragoman", "serve"], cwd=SOURCE, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("dragoman: this is Python 3.10.")
    assert "3.11 or newer is needed" in line


def test_the_command_checks_the_version_of_python(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 2, "final", 0))
    assert main(["serve"]) == 1
    assert capsys.readouterr().err.startswith("dragoman: this is Python 3.10.2 (")


@pytest.mark.varies("a start of the real server, a completion over HTTP, and how SIGTERM ends it")
def test_a_read_only_home_is_reported_and_the_server_starts() -> None:
    """Not even root can make files in /sys."""
    home = {"HOME": "/sys", "XDG_CACHE_HOME": "/sys/cache", "HF_HOME": ""}
    with serve("--max-model-len", "64", "--max-num-seqs", "1", environ=home) as running:
        [note] = [line for line in running.output if "note:" in line]
        body = {"model": "demo", "prompt": "The sea", "max_tokens": 2, "ignore_eos": True}
        answer = httpx.post(f"{running.base_url}/v1/completions", json=body, timeout=60).json()
        assert answer["usage"]["completion_tokens"] == 2
        assert running.terminate() == 0
    assert "Traceback" not in "".join(running.output)
    assert note.startswith("dragoman: note: /sys/cache/dragoman cannot be used (")
    assert "--cache-dir names another directory" in note


def test_a_model_of_the_hub_without_a_network_gives_one_line(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "dragoman", "serve", "some-org/some-model", "--port", "0"],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert result.returncode != 0
    [line] = [line for line in result.stderr.splitlines() if "some-org/some-model" in line]
    assert "HF_HUB_OFFLINE" in line
    assert "Traceback" not in result.stderr


@pytest.mark.full("a self-test of the bundled model in a process of its own")
def test_two_gigabytes_of_memory_suffice_for_the_bundled_model() -> None:
    """As a process that may map no more: its libraries, its weights and its cache are within.

    How fast steps are is measured as well, and says little beside the other tests: every answer is asserted, no duration.
    """

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))

    words = [sys.executable, "-m", "dragoman", "selftest", "--quick", "--json", "--max-num-seqs", "2"]
    result = subprocess.run(
        [*words, "--max-model-len", "256"],
        preexec_fn=bound, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert result.stdout, result.stderr
    off = {check["name"] for check in json.loads(result.stdout)["checks"] if check["verdict"] == "off"}
    assert off <= {"step of one row", "each further row"}, result.stdout
