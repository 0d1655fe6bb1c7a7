"""Clients have models of the hub brought to this machine, as Ollama's do; the hub is a fake one on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

from dragoman.config.resolve import demo_model_dir
from tests.support.fake_hub import FakeHub, fake_hub
from tests.support.patience import PATIENCE_S
from tests.support.server_process import ServerProcess, serve

WEIGHTS = bytes(range(256)) * 400
FILES = {"config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}" * 800, "model.safetensors": WEIGHTS}
SIZE = sum(map(len, FILES.values()))
KEYS = "operator: secret scopes=management\nuser: plain scopes=inference\n"


@pytest.fixture(scope="module")
def shared_hub() -> Iterator[FakeHub]:
    with fake_hub() as running:
        yield running


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


def environ_of(hub: FakeHub, cache: Path) -> dict[str, str]:
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": "",
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_OFFLINE": "",
        "HF_TOKEN": "",
    }


@pytest.fixture(scope="module")
def pulling(shared_hub: FakeHub, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its store has a model whose files are only on the hub."""
    store = tmp_path_factory.mktemp("store")
    (store / "tiny").mkdir()
    (store / "tiny" / "serving.properties").write_text("option.model_id=org/tiny-demo\n")
    words = ("--load-models", f"demo={demo_model_dir()}", "--model-store", str(store), "--allow-pull")
    with serve(*words, environ=environ_of(shared_hub, cache)) as running:
        yield running


@pytest.fixture
def hub(shared_hub: FakeHub, pulling: ServerProcess) -> Iterator[FakeHub]:
    """The hub as it is when nothing fails."""
    shared_hub.reached_half.clear()
    yield shared_hub
    for event in shared_hub.waits.values():
        event.set()
    shared_hub.waits.clear()
    shared_hub.is_failing = False


@contextmanager
def client_of(server: ServerProcess) -> Iterator[ollama.Client]:
    """The client, closed at the end."""
    client = ollama.Client(host=server.base_url, timeout=PATIENCE_S)
    try:
        yield client
    finally:
        client._client.close()


def brought(cache: Path, hub: FakeHub, name: str) -> dict[str, bytes]:
    """The files of a model in the cache."""
    commit = hub.repositories[name].commit
    snapshot = cache / f"models--{name.replace('/', '--')}" / "snapshots" / commit
    return {path.name: path.read_bytes() for path in snapshot.iterdir()}


def post(server: ServerProcess, body: Any, **headers: str) -> httpx.Response:
    return httpx.post(f"{server.base_url}/api/pull", json=body, headers=headers, timeout=PATIENCE_S)


def test_ollamas_client_sees_a_model_come(pulling: ServerProcess, hub: FakeHub, cache: Path) -> None:
    commit = hub.add("org/streamed", {**FILES, "pytorch_model.bin": b"x" * 2000}).commit
    with client_of(pulling) as client:
        first, *steps, last = client.pull("hf.co/org/streamed", stream=True)
    assert (first.status, last.status) == ("pulling manifest", "success")
    assert {(step.status, step.digest, step.total) for step in steps} == {
        ("pulling org/streamed", f"sha1:{commit}", SIZE)
    }
    told = [step.completed or 0 for step in steps]
    assert told == sorted(told)
    assert told[-1] == SIZE
    assert brought(cache, hub, "org/streamed") == FILES


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"model": "org/whole"}, "org/whole"),
        ({"name": "https://huggingface.co/org/older:latest"}, "org/older"),
    ],
)
def test_without_a_stream_only_the_end_is_told(
    body: dict[str, Any], name: str, pulling: ServerProcess, hub: FakeHub, cache: Path
) -> None:
    hub.add(name, FILES)
    answer = post(pulling, {**body, "stream": False, "insecure": True})
    assert (answer.status_code, answer.json()) == (200, {"status": "success"})
    assert answer.headers["x-dragoman-ignored"] == "insecure"
    assert brought(cache, hub, name) == FILES


def test_a_quantisation_is_named_behind_a_colon(pulling: ServerProcess, hub: FakeHub, cache: Path) -> None:
    hub.add("org/many", {"a-Q4_0.gguf": b"GGUF" * 500, "a-Q8_0.gguf": b"GGUF" * 900})
    with client_of(pulling) as client:
        assert client.pull("hf.co/org/many:Q4_0").status == "success"
    assert brought(cache, hub, "org/many") == {"a-Q4_0.gguf": b"GGUF" * 500}


@pytest.mark.parametrize("name", ["demo", "demo:latest"])
def test_what_is_served_is_here(name: str, pulling: ServerProcess, hub: FakeHub) -> None:
    hub.is_failing = True
    with client_of(pulling) as client:
        assert [step.status for step in client.pull(name, stream=True)] == ["pulling manifest", "success"]


def test_what_the_hub_does_not_have_is_told_in_the_stream_and_as_a_status(pulling: ServerProcess, hub: FakeHub) -> None:
    line = f"org/none: neither a directory here nor a model on {hub.url}"
    answer = post(pulling, {"model": "org/none"})
    lines = [json.loads(text) for text in answer.text.splitlines()]
    assert answer.status_code == 200
    assert lines[0] == {"status": "pulling manifest"}
    assert lines[-1]["error"].startswith(line)
    whole = post(pulling, {"model": "org/none", "stream": False})
    assert (whole.status_code, whole.json()["error"].startswith(line)) == (500, True)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, "model is required"),
        (
            {"model": "llama3"},
            "model must be served here, or ORG/NAME[:GGUF_TYPE][@REVISION] as on the hub, got 'llama3'",
        ),
        ({"model": "hf.co/../../etc"}, "model must be served here, or ORG/NAME"),
        ({"model": 3}, "model must be"),
    ],
)
def test_what_is_no_name_is_refused_before_the_hub_is_asked(
    body: Any, error: str, pulling: ServerProcess, hub: FakeHub
) -> None:
    num_asked = len(hub.requests)
    answer = post(pulling, body)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(error)
    assert len(hub.requests) == num_asked


def test_a_download_is_shared_goes_on_without_its_client_and_keeps_others_waiting(
    pulling: ServerProcess, hub: FakeHub, cache: Path
) -> None:
    names = ["org/first", "org/second"]
    hub.waits["model.safetensors"] = threading.Event()
    for name in names:
        hub.add(name, {**FILES, "model.safetensors": WEIGHTS + name.encode()})
    for name in names:  # both clients leave as soon as they have been told
        with httpx.stream("POST", f"{pulling.base_url}/api/pull", json={"model": name}, timeout=PATIENCE_S) as answer:
            lines = answer.iter_lines()
            while "completed" not in next(lines):
                pass
    assert hub.reached_half.wait(PATIENCE_S)
    refused = post(pulling, {"model": "org/third"})
    assert refused.status_code == 503
    assert "retry-after" in refused.headers
    assert "org/first, org/second are being downloaded" in refused.json()["error"]
    with client_of(pulling) as client:
        steps = client.pull("org/first", stream=True)
        assert next(steps).status == "pulling manifest"
        hub.waits["model.safetensors"].set()
        assert [step.status for step in steps][-1] == "success"
        assert client.pull("org/second").status == "success"
    for name in names:
        assert brought(cache, hub, name)["model.safetensors"] == WEIGHTS + name.encode()
    assert sum(path.startswith("/org/first/") and path.endswith(".safetensors") and method == "GET"
               for method, path in hub.requests) == 1  # fmt: skip


def test_calls_are_answered_meanwhile_and_the_end_waits_for_no_download(tmp_path: Path) -> None:
    with fake_hub() as hub:
        hub.add("org/slow", FILES)
        hub.waits["model.safetensors"] = threading.Event()
        keys = tmp_path / "keys"
        keys.write_text(KEYS)
        keys.chmod(0o600)
        words = ("--name", "demo", "--allow-pull", "--api-key-file", str(keys))
        with serve(*words, environ=environ_of(hub, tmp_path / "cache")) as server:
            refused = post(server, {"model": "org/slow"}, authorization="Bearer plain")
            assert refused.status_code == 403
            assert hub.requests == []
            headers = {"authorization": "Bearer secret"}
            url = f"{server.base_url}/api/pull"
            with httpx.stream("POST", url, json={"model": "org/slow"}, headers=headers, timeout=PATIENCE_S) as answer:
                lines = answer.iter_lines()
                while "completed" not in next(lines):
                    pass
                assert hub.reached_half.wait(PATIENCE_S)
                body = {"model": "demo", "prompt": "Hello", "stream": False, "options": {"num_predict": 2}}
                plain = {"authorization": "Bearer plain"}
                said = httpx.post(f"{server.base_url}/api/generate", json=body, headers=plain, timeout=PATIENCE_S)
                assert said.json()["done"] is True
                assert server.terminate() == 0
                *_, last = lines
            assert json.loads(last) == {"error": "the server is shutting down; what has come is kept"}
        assert not hub.waits["model.safetensors"].is_set()


def test_what_was_pulled_is_loaded_from_the_cache(pulling: ServerProcess, hub: FakeHub) -> None:
    hub.add("org/tiny-demo", {path.name: path.read_bytes() for path in demo_model_dir().iterdir() if path.is_file()})
    with client_of(pulling) as client:
        assert client.pull("org/tiny-demo").status == "success"
        hub.is_failing = True
        query = {"url": "tiny", "model_name": "tiny"}
        loaded = httpx.post(f"{pulling.base_url}/models", params=query, timeout=PATIENCE_S)
        assert loaded.status_code == 200, loaded.text
        assert client.generate("tiny", "Hello", options={"num_predict": 2}).done
        assert client.pull("tiny").status == "success"


def test_the_option_that_allows_it_is_named(server: ServerProcess) -> None:
    with client_of(server) as client:
        with pytest.raises(ollama.ResponseError, match="only if the server was started with --allow-pull") as caught:
            client.pull("org/other")
        assert caught.value.status_code == 400
        assert client.pull("demo").status == "success"
