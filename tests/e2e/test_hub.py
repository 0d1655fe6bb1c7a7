"""A model of the hub is served by its name, as people start it; the hub is a fake one on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dragoman.config.resolve import demo_model_dir
from tests.support.fake_hub import FakeHub, fake_hub
from tests.support.server_process import serve

NAME = "org/tiny-demo"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub() as running:
        files = {path.name: path.read_bytes() for path in demo_model_dir().iterdir() if path.is_file()}
        running.add(NAME, {**files, "pytorch_model.bin": b"pickle" * 500, "modeling_evil.py": b"raise SystemExit(3)"})
        yield running


@pytest.fixture
def environ(hub: FakeHub, tmp_path: Path) -> dict[str, str]:
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf"),
        "XDG_CACHE_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "",
        "HF_HUB_CACHE": "",
        "HF_TOKEN": "",
    }


def completion(url: str, model: str) -> str:
    body = {"model": model, "prompt": "What is deep learning?", "max_tokens": 8, "temperature": 0}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def test_serving_by_name_downloads_what_is_needed(hub: FakeHub, environ: dict[str, str]) -> None:
    with serve(NAME, "--dtype", "f32", environ=environ) as server:
        text = completion(server.base_url, "tiny-demo")
        assert completion(server.base_url, NAME) == text
        listed = [one["id"] for one in httpx.get(f"{server.base_url}/v1/models", timeout=30).json()["data"]]
        assert "tiny-demo" in listed
    assert "downloading org/tiny-demo" in "".join(server.output)
    assert hub.asked_for("pytorch_model.bin") == hub.asked_for("modeling_evil.py") == 0


@pytest.mark.full("two starts; tests/hub/test_download.py takes models from it without the hub")
def test_what_was_downloaded_is_served_without_the_hub(hub: FakeHub, environ: dict[str, str]) -> None:
    with serve(NAME, "--dtype", "f32", environ=environ) as server:
        text = completion(server.base_url, "tiny-demo")
    hub.is_failing = True
    with serve(NAME, "--dtype", "f32", environ={**environ, "HF_HUB_OFFLINE": "1"}) as server:
        assert completion(server.base_url, "tiny-demo") == text
    assert f"note: {NAME}: taken from the cache as it is there" in "".join(server.output)


def command(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dragoman", *words],
        env={**os.environ, **environ}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_a_mistake_elsewhere_is_told_before_anything_is_downloaded(hub: FakeHub, environ: dict[str, str]) -> None:
    result = command(environ, "serve", NAME, "--dtype", "int3")
    assert result.returncode == 2
    assert result.stderr.startswith("dragoman: --dtype=int3 (command line): must be")
    assert hub.requests == []


def test_a_model_that_nobody_has_is_one_line(environ: dict[str, str]) -> None:
    result = command(environ, "serve", "org/none")
    assert result.returncode == 2
    assert result.stderr.startswith(
        "dragoman: MODEL_DIR=org/none (command line): org/none: neither a directory here nor"
    )
    assert result.stderr.count("\n") == 1


@pytest.mark.full("kills a process; tests/hub takes up downloads that broke off")
def test_a_killed_download_is_taken_up_by_the_next_start(hub: FakeHub, environ: dict[str, str]) -> None:
    import threading

    hub.waits["model.safetensors"] = threading.Event()
    process = subprocess.Popen(
        [sys.executable, "-m", "dragoman", "pull", NAME], env={**os.environ, **environ}, stderr=subprocess.DEVNULL
    )
    assert hub.reached_half.wait(60)
    process.kill()
    process.wait(timeout=30)
    hub.waits.pop("model.safetensors").set()
    result = command(environ, "models")
    assert "incomplete: *.safetensors is missing" in result.stdout
    result = command(environ, "pull", NAME)
    assert result.returncode == 0, result.stderr
    weights = Path(result.stdout.strip()) / "model.safetensors"
    assert weights.read_bytes() == (demo_model_dir() / "model.safetensors").read_bytes()


def test_two_starts_at_once_both_get_the_model(hub: FakeHub, environ: dict[str, str]) -> None:
    words = [sys.executable, "-m", "dragoman", "pull", NAME]
    both = [subprocess.Popen(words, env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = {process.communicate(timeout=120)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(found) == 1
    weights = Path(found.pop()) / "model.safetensors"
    assert weights.read_bytes() == (demo_model_dir() / "model.safetensors").read_bytes()


@pytest.mark.full("a process for LLM; the names are those of a server, which is asked above")
def test_the_offline_api_takes_a_name_too(hub: FakeHub, environ: dict[str, str]) -> None:
    script = f"from dragoman.llm import LLM\nwith LLM({NAME!r}) as llm: print(llm.config.name)"
    env = {**os.environ, **environ}
    result = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert (result.returncode, result.stdout) == (0, "tiny-demo\n"), result.stderr
