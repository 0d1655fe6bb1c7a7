"""model.py as an operator uses it: the real command, the demo model, the example of the repository, the switches."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from dragoman.config.resolve import demo_model_dir
from tests.support.server_process import serve
from tests.support.tables import table
from tests.support.tiers import width

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "formatter" / "model.py"


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A copy of the demo model with the example beside it."""
    directory = tmp_path / "own-model"
    shutil.copytree(demo_model_dir(), directory)
    shutil.copy(EXAMPLE, directory / "model.py")
    return directory


def test_the_example_reads_and_writes(model_dir: Path) -> None:
    with serve(str(model_dir), "--kv-cache-gb", "0.01") as server:
        body = {"question": "What is it?", "length": 4, "tag": "blue"}
        whole = httpx.post(f"{server.base_url}/invocations", json=body, timeout=60)
        assert whole.headers["content-type"] == "application/json"
        assert whole.json().keys() == {"answer", "tag", "why"}
        streamed = httpx.post(f"{server.base_url}/invocations", json={**body, "live": True}, timeout=60)
        lines = [json.loads(line) for line in streamed.text.splitlines()]
        assert "".join(line["word"] for line in lines) == whole.json()["answer"]
        assert (lines[-1]["why"], lines[-1]["tag"]) == (whole.json()["why"], "blue")
        wrong = httpx.post(f"{server.base_url}/invocations", json={"inputs": "hi"}, timeout=60)
        assert (wrong.status_code, "Invalid Request Property: 'question'" in wrong.json()["error"]) == (424, True)


def test_switched_off_the_file_is_not_read(model_dir: Path) -> None:
    (model_dir / "model.py").write_text("raise RuntimeError('read')\n")
    (model_dir / "serving.properties").write_text("option.enable_hooks=false\noption.entryPoint=model.py\n")
    with serve(str(model_dir), "--kv-cache-gb", "0.01") as server:
        body = {"inputs": "Hi", "parameters": {"max_new_tokens": 2}}
        assert "generated_text" in httpx.post(f"{server.base_url}/invocations", json=body, timeout=60).json()


FAULTS = [
    ("def broken(:\n", [], "SyntaxError"),
    ("", ["--output-formatter", "mine", "--no-hooks"], "must not name a function while hooks are switched off"),
    ("", ["--entry-point", "other.py"], "there is none of that name"),
    ("", ["--output-formatter", "mine"], "has no function named mine"),
]


@table(("source", "options", "message"), width(FAULTS, FAULTS[:1]))  # test_loading has most without a process
def test_a_file_that_cannot_act_stops_the_start(model_dir: Path, source: str, options: list[str], message: str) -> None:
    (model_dir / "model.py").write_text(source)
    command = [sys.executable, "-m", "dragoman", "serve", str(model_dir), "--port", "0", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert message in ended.stderr
    assert "dragoman/server" not in ended.stderr, "the operator sees no traceback of the server's own"
