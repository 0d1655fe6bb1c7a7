"""A directory of models over a real server: named in calls, loaded, listed, unloaded, and loaded again by batches."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import ollama
import openai
import pytest

from dragoman.config.resolve import demo_model_dir
from tests.e2e.test_models_come_and_go import add_model
from tests.support.server_process import ServerProcess, serve

PATIENCE_S = 120.0
FIRST, NESTED = "first", "org/second"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that has loaded nothing yet, over a model, and one in an organisation's folder."""
    root = tmp_path_factory.mktemp("models")
    (root / "org").mkdir()
    for name in (FIRST, NESTED):
        add_model(root / name)
    arguments = ("--models-dir", str(root), "--store-dir", str(tmp_path_factory.mktemp("kept")), "--memory-gb", "8")
    with serve(*arguments, environ={"OPTION_DTYPE": "f32"}) as running:
        yield running


def loaded(official: ollama.Client) -> dict[str, str]:
    """What Ollama's clients are told of the loaded models: names, and when they leave."""
    return {str(one.model): str(one.expires_at) for one in official.ps().models}


def until_loaded(official: ollama.Client, *names: str) -> None:
    """Return once exactly these are loaded."""
    end_s = time.monotonic() + PATIENCE_S
    while sorted(loaded(official)) != sorted(names):
        assert time.monotonic() < end_s, loaded(official)


def test_models_come_when_they_are_named_and_go_when_they_may(server: ServerProcess) -> None:
    with ollama.Client(server.base_url) as local, openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="x") as api:
        assert sorted(one.id for one in api.models.list()) == [FIRST, NESTED]
        tags = local.list().models
        assert sorted(str(one.model) for one in tags) == [f"{FIRST}:latest", f"{NESTED}:latest"]
        assert {one.size for one in tags} == {(demo_model_dir() / "model.safetensors").stat().st_size}
        assert loaded(local) == {}
        texts = [
            api.completions.create(model=name, prompt="The sea", max_tokens=8, temperature=0).choices[0].text
            for name in (FIRST, NESTED)
        ]
        assert texts[0] == texts[1] != ""
        assert set(loaded(local)) == {f"{FIRST}:latest", f"{NESTED}:latest"}
        assert all(expires.startswith("9999") for expires in loaded(local).values())
        [first] = [one for one in local.ps().models if one.model == f"{FIRST}:latest"]
        assert first.size is not None
        assert first.size > (demo_model_dir() / "model.safetensors").stat().st_size, "its cache is counted, too"
        assert local.generate(NESTED, keep_alive=0).done_reason == "unload"
        until_loaded(local, f"{FIRST}:latest")
        assert local.generate(FIRST, "The sea", keep_alive="100ms", options={"num_predict": 4}).response
        until_loaded(local)
        assert httpx.get(f"{server.base_url}/ping").status_code == 200
        with pytest.raises(openai.NotFoundError, match="third"):
            api.completions.create(model="third", prompt="The sea")
        lines = [
            json.dumps(
                {
                    "custom_id": name,
                    "method": "POST",
                    "url": "/v1/completions",
                    "body": {"model": name, "prompt": "The sea", "max_tokens": 8, "temperature": 0},
                }
            )
            for name in (FIRST, NESTED)
        ]
        given = api.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
        batch = api.batches.create(input_file_id=given.id, endpoint="/v1/completions", completion_window="24h")
        end_s = time.monotonic() + PATIENCE_S
        while (batch := api.batches.retrieve(batch.id)).status not in ("completed", "failed", "expired"):
            assert time.monotonic() < end_s, batch
        assert (batch.status, batch.output_file_id is not None) == ("completed", True), batch
        answers = [json.loads(line) for line in api.files.content(str(batch.output_file_id)).text.splitlines()]
        assert sorted(one["custom_id"] for one in answers) == [FIRST, NESTED]
        assert {one["response"]["body"]["choices"][0]["text"] for one in answers} == {texts[0]}


@pytest.mark.full("loads a model three times; tests/host/test_models_by_name.py has it over made-up ones")
def test_the_model_of_the_start_leaves_and_comes_back(tmp_path: Path) -> None:
    """A model that was chosen at the start leaves when nobody calls it, and calls without a name bring it back."""
    shutil.copytree(demo_model_dir(), tmp_path / "mine")
    with (
        serve(str(tmp_path / "mine"), "--idle-unload", "200ms", "--kv-cache-gb", "0.02") as running,
        ollama.Client(running.base_url) as local,
    ):
        until_loaded(local)
        answer = httpx.post(f"{running.base_url}/generate", json={"inputs": "hi"}, timeout=PATIENCE_S)
        assert answer.status_code == 200
        until_loaded(local)
        body = {"model": "mine", "prompt": "hi", "max_tokens": 2}
        assert httpx.post(f"{running.base_url}/v1/completions", json=body, timeout=PATIENCE_S).status_code == 200
