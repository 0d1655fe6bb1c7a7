"""Adapters as clients meet them: each API's way to ask for one, and loading and unloading while the server answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.config.bundled import BUNDLED
from tests.support.adapters import matrices_of, write_adapter
from tests.support.server_process import ServerProcess, serve
from tests.support.tables import table

DEMO = BUNDLED["demo"]
PROMPT = "What is deep learning?"
TARGETS = ("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of adapters, and one that fits no such model."""
    root = tmp_path_factory.mktemp("adapters")
    modules = matrices_of(DEMO, TARGETS)
    for seed, name in enumerate(("one", "two", "three", "four")):
        write_adapter(root / name, modules, seed=seed)
    write_adapter(root / "linked", modules)
    (root / "linked" / "README.md").symlink_to(DEMO / "config.json")
    write_adapter(root / "large", modules, rank=64)
    write_adapter(root / "foreign", {f"{module}.other": shape for module, shape in modules.items()})
    return root


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[ServerProcess]:
    arguments = ("--dtype", "f32", "--name", "demo", "--lora", f"one={store / 'one'}", "--lora", f"two={store / 'two'}")
    with serve(*arguments, "--enable-lora", "--max-loras", "3", "--lora-store", str(store)) as running:
        yield running


def post(server: ServerProcess, path: str, body: Any = None, **more: Any) -> httpx.Response:
    return httpx.post(f"{server.base_url}{path}", json=body, timeout=120, **more)


def of_openai(server: ServerProcess, model: str) -> str:
    """What that model or adapter answers."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    response = post(server, "/v1/completions", body)
    assert response.status_code == 200, response.text
    assert response.json()["model"] == model
    text: str = response.json()["choices"][0]["text"]
    return text


def of_lmi(server: ServerProcess, body: dict[str, Any], **more: Any) -> Any:
    inputs = {"inputs": PROMPT, "parameters": {"max_new_tokens": 8}, **body}
    response = post(server, "/invocations", inputs, **more)
    assert response.status_code == 200, response.text
    assert "x-dragoman-ignored" not in response.headers
    return response.json()


def test_every_api_has_its_way_to_ask_for_an_adapter(server: ServerProcess) -> None:
    base, one, two = (of_openai(server, name) for name in ("demo", "one", "two"))
    assert len({base, one, two}) == 3

    assert of_lmi(server, {})["generated_text"] == base
    assert of_lmi(server, {"adapters": "one"})["generated_text"] == one
    assert of_lmi(server, {"adapters": ""})["generated_text"] == base
    assert of_lmi(server, {}, params={"adapter": "two"})["generated_text"] == two
    named = {"X-Amzn-SageMaker-Adapter-Identifier": "one"}
    assert of_lmi(server, {"adapters": "two"}, headers=named)["generated_text"] == one
    several = of_lmi(server, {"inputs": [PROMPT] * 3, "adapters": ["two", "", "one"]})
    assert [answer["generated_text"] for answer in several] == [two, base, one]

    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 8, "adapter_id": "two"}}
    answer = post(server, "/generate", body)
    assert answer.json()["generated_text"] == two
    assert "x-dragoman-ignored" not in answer.headers

    messages = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8, "temperature": 0}
    texts: dict[str, str] = {}
    for path, name, more in (
        ("/v1/chat/completions", "one", {"model": "one"}),
        ("/v3/chat/completions", "one", {"model": "one"}),
        ("/v1/chat/completions", "demo", {"model": "demo"}),
        ("/invocations", "one", {"adapters": "one"}),
    ):
        reply = post(server, path, {**messages, **more})
        assert reply.status_code == 200, reply.text
        text = reply.json()["choices"][0]["message"]["content"]
        assert texts.setdefault(name, text) == text
    assert texts["one"] != texts["demo"]


def test_adapters_are_listed_with_the_model_that_they_change(server: ServerProcess, store: Path) -> None:
    for path in ("/v1/models", "/v3/models"):
        listed = {model["id"]: model for model in httpx.get(f"{server.base_url}{path}").json()["data"]}
        assert listed["one"]["parent"] == "demo"
        assert listed["one"]["root"] == str(store / "one")
        assert "parent" not in listed["demo"]
        assert httpx.get(f"{server.base_url}{path}/one").json()["parent"] == "demo"
    page = httpx.get(f"{server.base_url}/models/demo/adapters").json()
    assert page["adapters"][0] == {"name": "one", "src": str(store / "one"), "pin": False, "preload": True}
    assert httpx.get(f"{server.base_url}/adapters/two").json()["name"] == "two"
    assert any("adapters one, two" in line for line in server.output)


@table(
    ("path", "body", "status"),
    [
        ("/v1/completions", {"model": "none", "prompt": PROMPT}, 404),
        ("/invocations", {"inputs": PROMPT, "adapters": "none"}, 424),
        ("/invocations", {"inputs": PROMPT, "adapters": ["one", "two"]}, 424),
        ("/invocations?adapter=none", {"inputs": PROMPT}, 424),
        ("/generate", {"inputs": PROMPT, "parameters": {"adapter_id": "none"}}, 422),
        ("/v1/load_lora_adapter", {"lora_name": "x"}, 400),
        ("/v1/load_lora_adapter", {"lora_name": "one", "lora_path": "one"}, 400),
        ("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "/etc"}, 400),
        ("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "../one/../.."}, 400),
        ("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "nothing"}, 400),
        ("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "linked"}, 400),
        ("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "large"}, 400),
        ("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "foreign"}, 400),
        ("/v1/load_lora_adapter", {"lora_name": "demo", "lora_path": "three"}, 400),
        ("/v1/unload_lora_adapter", {"lora_name": "none"}, 404),
        ("/models/demo/adapters", None, 400),
        ("/models/demo/adapters?name=one&src=one", None, 409),
        ("/models/demo/adapters?name=x&src=nothing", None, 424),
        ("/models/demo/adapters?name=x&src=three&preload=false", None, 424),
        ("/models/none/adapters?name=x&src=three", None, 404),
        ("/models/demo/adapters/none/update?pin=true", None, 404),
    ],
)
def test_what_is_wrong_is_told_as_the_api_tells_it(server: ServerProcess, path: str, body: Any, status: int) -> None:
    response = post(server, path, body)
    assert response.status_code == status, response.text


def test_adapters_come_and_go_while_requests_run(server: ServerProcess) -> None:
    expected = {name: of_openai(server, name) for name in ("demo", "one")}
    is_over = threading.Event()
    wrong: list[str] = []

    def ask(name: str) -> None:
        while not is_over.is_set():
            text = of_openai(server, name)
            if text != expected[name]:
                wrong.append(text)

    threads = [threading.Thread(target=ask, args=(name,)) for name in expected]
    for thread in threads:
        thread.start()
    try:
        loaded = post(server, "/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": "three"})
        assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'sql' added successfully.")
        three = of_openai(server, "sql")
        full = post(server, "/models/demo/adapters?name=more&src=four")
        assert full.status_code == 507
        assert "max_loras is 3" in full.json()["message"]
        gone = post(server, "/v1/unload_lora_adapter", {"lora_name": "sql"})
        assert (gone.status_code, gone.text) == (200, "Success: LoRA adapter 'sql' removed successfully.")
        assert post(server, "/v1/completions", {"model": "sql", "prompt": PROMPT}).status_code == 404

        registered = post(server, "/models/demo/adapters?name=sql&src=four")
        assert registered.json() == {"status": "Adapter sql registered"}
        four = of_openai(server, "sql")
        assert four != three, "another adapter of the same name shares nothing that was cached"
        assert post(server, "/models/demo/adapters/sql/update?pin=true").json() == {"status": "Adapter sql updated"}
        response = httpx.delete(f"{server.base_url}/adapters/sql", timeout=60)
        assert response.json() == {"status": "Adapter sql unregistered"}
        again = post(server, "/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": "three"})
        assert again.status_code == 200
        assert of_openai(server, "sql") == three
        assert httpx.delete(f"{server.base_url}/models/demo/adapters/sql", timeout=60).status_code == 200
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert not wrong


@pytest.mark.full("a second start; tests/models/test_adapters.py merges, tests/config reads the option")
def test_a_merged_adapter_is_the_model(server: ServerProcess, store: Path) -> None:
    expected = of_openai(server, "two")
    with serve("--dtype", "f32", "--name", "demo", "--lora", f"two={store / 'two'}", "--merge-lora") as merged:
        assert of_openai(merged, "two") == of_openai(merged, "demo") == expected
        refused = post(merged, "/adapters?name=x&src=one")
        assert (refused.status_code, refused.json()["message"]) == (400, "LoRA is not enabled.")
