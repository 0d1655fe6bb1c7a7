"""Handlers as an operator uses them: the real command, with and without weights beside the file, what stops the start."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dragoman.config.resolve import demo_model_dir
from tests.support.server_process import ServerProcess, serve
from tests.support.tables import table
from tests.support.tiers import width

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "handler" / "model.py"

WORDS = """
import threading

from djl_python import Input, Output
from djl_python.inputs import Input as SameInput
from djl_python.outputs import Output as SameOutput

started = {}
closed = threading.Event()


def answer(inputs: Input) -> Output:
    if inputs.is_empty():
        started.update(inputs.get_properties())
        return None
    if inputs.get_property("content-type") == "image/png":
        return Output().add(inputs.get_as_bytes()).add_property("Content-Type", "image/png")
    body = inputs.get_as_json()
    if body.get("stream"):
        return Output().add_stream_content(words(body["inputs"]))
    if body.get("options"):
        return Output().add({name: started.get(name) for name in body["options"]})
    if body.get("generate"):
        return Output().add(inputs.model.generate({"inputs": body["inputs"], "parameters": {"max_new_tokens": 4}}))
    return Output(code=202).add(body["inputs"].upper()).add_property("X-Length", str(len(body["inputs"])))


def words(text):
    for word in text.split():
        yield word
"""
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def handler_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory without weights, with a handler of another name."""
    directory: Path = tmp_path_factory.mktemp("own-handler")
    (directory / "own.py").write_text(WORDS, encoding="utf-8")
    options = "engine=Python\noption.entryPoint=own.py\noption.handler=answer\noption.dtype=int4\noption.voice=deep\n"
    options += "option.served_model_name=own\noption.tags=spoken\n"
    (directory / "serving.properties").write_text(options, encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def without_weights(handler_dir: Path) -> Iterator[ServerProcess]:
    """A server of that directory."""
    with serve(str(handler_dir)) as running:
        yield running


def ask(server: ServerProcess, body: object, path: str = "/invocations") -> httpx.Response:
    """The answer to a JSON body."""
    return httpx.post(f"{server.base_url}{path}", json=body, timeout=60)


class TestWithoutWeights:
    def test_the_lmi_routes_are_the_handlers(self, without_weights: ServerProcess) -> None:
        whole = ask(without_weights, {"inputs": "loud"})
        assert (whole.status_code, whole.text, whole.headers["x-length"]) == (202, "LOUD", "4")
        streamed = ask(without_weights, {"inputs": "one two", "stream": True})
        assert streamed.headers["content-type"] == "application/jsonlines"
        assert [json.loads(line)["outputs"] for line in streamed.text.splitlines()] == ["one", "two"]
        image = httpx.post(
            f"{without_weights.base_url}/invocations", content=b"\x89PNG", headers={"content-type": "image/png"}
        )
        assert (image.headers["content-type"], image.content) == ("image/png", b"\x89PNG")

    def test_the_handler_was_told_the_options(self, without_weights: ServerProcess, handler_dir: Path) -> None:
        names = [
            "model_dir",
            "device_id",
            "tensor_parallel_degree",
            "dtype",
            "handler",
            "api_key",
            "batch_size",
            "voice",
        ]
        assert ask(without_weights, {"options": names}).json() == {
            "model_dir": str(handler_dir.resolve()),
            "device_id": "-1",
            "tensor_parallel_degree": "1",
            "dtype": "int4",
            "handler": "answer",
            "api_key": None,
            "batch_size": None,
            "voice": "deep",
        }

    @table(
        ("path", "body"),
        [
            ("/v1/chat/completions", CHAT),
            ("/v1/completions", {"prompt": "Hi"}),
            ("/v3/completions", {"prompt": "Hi", "model": "own"}),
            ("/generate", {"inputs": "Hi"}),
            ("/api/generate-one", {"id": 1, "prompt": "Hi", "maxLength": 3}),
            ("/tokenize", {"prompt": "Hi"}),
        ],
    )
    def test_other_routes_say_that_nothing_can_be_generated(
        self, without_weights: ServerProcess, path: str, body: dict[str, object]
    ) -> None:
        answer = ask(without_weights, body, path)
        assert 400 <= answer.status_code < 500
        assert "own handler" in answer.text or "no tokenizer here" in answer.text

    def test_it_is_healthy_and_listed(self, without_weights: ServerProcess) -> None:
        assert httpx.get(f"{without_weights.base_url}/ping").status_code == 200
        (listed,) = httpx.get(f"{without_weights.base_url}/v1/models").json()["data"]
        assert (listed["id"], listed["tags"]) == ("own", ["spoken"])
        assert httpx.get(f"{without_weights.base_url}/metrics").status_code == 200


def test_the_example_counts_streams_and_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "with-model"
    shutil.copytree(demo_model_dir(), directory)
    shutil.copy(EXAMPLE, directory / "model.py")
    with serve(str(directory), "--kv-cache-gb", "0.01") as server:
        counted = ask(server, {"inputs": "one two"})
        assert (counted.json(), counted.headers["x-counted-by"]) == ({"words": 2}, str(directory))
        assert ask(server, {"inputs": "one two", "stream": True}).text == '{"outputs": "one"}\n{"outputs": "two"}\n'
        assert ask(server, {"inputs": "one two", "complete": True}).json()["generated_text"]
        wrong = ask(server, {"inputs": 5})
        assert (wrong.status_code, wrong.json()["error"]) == (400, "inputs must be a string")


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A copy of the demo model with the handler beside it, under its usual names."""
    directory = tmp_path / "own-model"
    shutil.copytree(demo_model_dir(), directory)
    (directory / "model.py").write_text(WORDS.replace("def answer", "def handle"), encoding="utf-8")
    return directory


@pytest.mark.full("real weights beside a handler: test_handlers and test_handler_model have it with a scripted model")
def test_beside_weights_the_other_routes_generate_and_so_can_the_handler(model_dir: Path) -> None:
    with serve(str(model_dir), "--kv-cache-gb", "0.01") as server:
        assert ask(server, {"inputs": "loud"}).text == "LOUD"
        assert ask(server, {"inputs": "Hi", "generate": True}).json()["generated_text"]
        assert ask(server, CHAT, "/v1/chat/completions").json()["usage"]["completion_tokens"] > 0


def test_weights_that_the_engine_cannot_serve_leave_the_handler(model_dir: Path) -> None:
    (model_dir / "config.json").write_text(
        '{"architectures": ["BertForMaskedLM"], "model_type": "bert"}', encoding="utf-8"
    )
    with serve(str(model_dir)) as server:
        assert ask(server, {"inputs": "loud"}).text == "LOUD"
        assert "own handler" in ask(server, CHAT, "/v1/chat/completions").text
        assert "is served by its handler only" in "".join(server.output)


@pytest.mark.full("switched off on the command line, as test_served has it by the model's own file")
def test_switched_off_the_file_is_not_read(model_dir: Path) -> None:
    with serve(str(model_dir), "--kv-cache-gb", "0.01", "--no-hooks") as server:
        assert "generated_text" in ask(server, {"inputs": "Hi", "parameters": {"max_new_tokens": 2}}).json()


FAULTS: list[tuple[str, list[str], list[str]]] = [
    (
        "def handle(inputs):\n    raise RuntimeError('no licence')\n",
        [],
        ["handle() failed to initialise", 'model.py", line 2, in handle', "RuntimeError: no licence"],
    ),
    (
        "from djl_python import Output\ndef handle(inputs):\n    return Output().error('no licence')\n",
        [],
        ["answered its initialisation with status 424", "no licence"],
    ),
    ("def handle(inputs): ...\n", ["--handler", "other"], ["option.handler=other: must be a function of"]),
]


@table(("source", "options", "messages"), width(FAULTS, FAULTS[:1]))  # each is a start of its own
def test_a_handler_that_cannot_start_stops_the_start(
    tmp_path: Path, source: str, options: list[str], messages: list[str]
) -> None:
    (tmp_path / "model.py").write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "dragoman", "serve", str(tmp_path), "--port", "0", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode != 0
    for message in messages:
        assert message in ended.stderr
    assert "dragoman/server" not in ended.stderr, "the operator sees no traceback of the server's own"


@pytest.mark.full("a handler beside another model in one process; each alone has its tests")
def test_a_handler_and_a_model_share_a_process(handler_dir: Path) -> None:
    models = f"own={handler_dir},demo={demo_model_dir()}"
    with serve("--load-models", models, "--kv-cache-gb", "0.01") as server:
        assert ask(server, {"inputs": "loud"}, "/predictions/own").text == "LOUD"
        assert ask(server, {"inputs": "loud"}, "/endpoints/own/invocations").text == "LOUD"
        generated = ask(server, {"inputs": "Hi", "parameters": {"max_new_tokens": 2}}, "/predictions/demo")
        assert generated.json().keys() == {"generated_text"}
        assert ask(server, {**CHAT, "model": "demo"}, "/v1/chat/completions").status_code == 200
        assert "own handler" in ask(server, {**CHAT, "model": "own"}, "/v1/chat/completions").text
