"""What `POST /explain` and `dragoman explain` say of a call is what happens to it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.cli import main
from dragoman.engine.base import check_request
from dragoman.engine.factory import BuiltEngine
from dragoman.engine.renewable import RenewableEngine
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.engine import RollingEngine
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.errors import EngineDead
from dragoman.server.operations import GenerateOperation
from tests.engine.fake_runner import FakeRunner
from tests.engine.naive import make_request
from tests.support.live_routes import live_operations
from tests.support.server_process import ServerProcess
from tests.support.tables import table
from tests.support.tiers import width

DOCS = Path(__file__).parents[2] / "docs"

EXPLAINED = [
    operation
    for operation in live_operations()
    if type(operation) is GenerateOperation and isinstance(operation.example, dict)
]
# Several paths of LMI and of TGI take the same.
DIFFERENT = list({(one.path.startswith("/v3"), str(one.example)): one for one in EXPLAINED}.values())


def explained(server: ServerProcess, path: str, body: Any, **headers: str) -> dict[str, Any]:
    asked = {"path": path, "body": body, "headers": headers}
    answer = httpx.post(f"{server.base_url}/explain", json=asked, timeout=60)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def parameter(told: dict[str, Any], name: str) -> dict[str, Any]:
    [found] = [one for one in told["parameters"] if one["name"] == name]
    return dict(found)


def without_id(text: str) -> str:
    return re.sub(r"[0-9a-f-]{36}", "ID", text)


@table("operation", width(EXPLAINED, DIFFERENT), ids=lambda operation: operation.path)
def test_the_example_of_every_operation_is_explained_and_not_generated(
    server: ServerProcess, operation: GenerateOperation
) -> None:
    before = server.metrics()["dragoman_generation_tokens_total"]
    path = re.sub(r"{\w+}", "demo", operation.path)
    told = explained(server, path, operation.example | {"colour": 1})
    assert server.metrics()["dragoman_generation_tokens_total"] == before
    assert told["operation"] == f"POST {operation.path}"
    assert told["model"] == "demo"
    assert told["refusal"] is None
    assert [one["name"] for one in told["ignored"]] == ["colour"]
    assert told["prompts"]
    assert all(prompt["tokens"] > 0 for prompt in told["prompts"])
    assert "request" in parameter(told, "max_tokens")["source"]
    strict = explained(server, path, operation.example | {"colour": 1}, **{"x-dragoman-strict": "1"})
    assert "colour" in strict["refusal"]["body"]


REFUSED: list[tuple[str, Any]] = [
    ("/v1/completions", {"model": "demo", "prompt": "x", "max_tokens": -1}),
    ("/v1/completions", {"model": "demo", "prompt": "x", "logit_bias": {"9999999": 1}}),
    ("/v1/completions", {"model": "nobody", "prompt": "x"}),
    ("/v1/completions", {"model": "demo", "prompt": "word " * 4000}),
    ("/v1/chat/completions", {"model": "demo", "messages": []}),
    ("/v3/completions", {"model": "demo", "prompt": "x", "max_tokens": "many"}),
    ("/v3/chat/completions", {"model": "demo"}),
    ("/invocations", {"inputs": "x", "parameters": {"temperature": -1}}),
    ("/invocations", {"inputs": "x", "parameters": {"num_beams": 20, "max_new_tokens": 2000, "n": 21}}),
    ("/generate", {"inputs": "x" * 20_000, "parameters": {"max_new_tokens": 5000}}),
    ("/api/generate-one", {"id": 1, "prompt": "", "maxLength": 3}),
    ("/api/generate-batch", {"prompts": []}),
    ("/endpoints/demo/invocations", {"inputs": ""}),
]  # fmt: skip


@table(("path", "body"), REFUSED)
def test_a_refusal_is_told_exactly(server: ServerProcess, path: str, body: Any) -> None:
    real = httpx.post(f"{server.base_url}{path}", json=body, timeout=60)
    assert real.status_code >= 400
    refusal = explained(server, path, body, **{"user-agent": real.request.headers["user-agent"]})["refusal"]
    assert refusal["status"] == real.status_code
    assert without_id(refusal["body"]) == without_id(real.text)


def test_prompts_are_as_long_as_usage_says(server: ServerProcess) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the sea?"}]
    body = {"model": "demo", "messages": messages, "max_tokens": 2}
    headers = {"accept": "text/event-stream"}
    usage = httpx.post(f"{server.base_url}/v1/chat/completions", json=body, headers=headers, timeout=60).json()["usage"]
    [prompt] = explained(server, "/v1/chat/completions", body, **headers)["prompts"]
    assert prompt["tokens"] == usage["prompt_tokens"]
    assert "Be brief." in prompt["text"]
    assert prompt["text"].endswith("assistant\n")
    assert prompt["max_tokens"] == 2


def test_every_prompt_of_a_call_is_told(server: ServerProcess) -> None:
    told = explained(server, "/api/generate-batch", {"prompts": [
        {"id": "a", "prompt": "One", "maxLength": 3}, {"id": "b", "prompt": "One two three", "maxLength": 4}
    ]})  # fmt: skip
    assert [prompt["max_tokens"] for prompt in told["prompts"]] == [3, 4]


def test_each_parameter_names_who_decided_it(server: ServerProcess) -> None:
    body = {"inputs": "x", "parameters": {"max_new_tokens": 7, "do_sample": True, "temperature": 1.0, "beta": 1}}
    told = explained(server, "/invocations", body)
    assert parameter(told, "max_tokens") == {
        "name": "max_tokens", "value": 7, "source": "request", "names": ["max_new_tokens"]
    }  # fmt: skip
    assert parameter(told, "temperature")["names"] == ["do_sample", "temperature"]  # though 1.0 is the default
    assert parameter(told, "repetition_penalty")["source"] == "API default"
    assert parameter(told, "seed")["source"] == "drawn"
    assert told["ignored"] == [{"name": "beta", "why": "another field says the same, or there is no such parameter"}]
    stream: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}  # refused without the stream
    streamed = explained(server, "/v1/completions", {"model": "demo", "prompt": "x", **stream})
    assert parameter(streamed, "stream")["names"] == ["stream"]
    open_end = explained(server, "/v1/completions", {"model": "demo", "prompt": "x", "max_completion_tokens": None})
    assert parameter(open_end, "max_tokens")["source"] in ("context length", "API default")


def test_parameters_have_names_that_users_know(server: ServerProcess) -> None:
    weather = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    chat = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [weather],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "response_format": {"type": "json_object"},
    }
    line = {"prompt": "x", "logit_bias": [["sea", 2.0]], "n_indent": 4, "t_max_predict_ms": 1500}
    named, ended = explained(server, "/v1/chat/completions", chat), explained(server, "/completion", line)
    pages = [DOCS / "explain.md", *(DOCS / "dialects").glob("*.md")]
    documented = set(re.findall(r"`([a-z_]+)`", "".join(page.read_text() for page in pages)))
    for one in (*named["parameters"], *ended["parameters"]):
        assert one["name"] in documented or " " in one["name"]  # a description
    assert parameter(named, "tool_choice")["value"] == {"name": "weather"}
    assert parameter(named, "tool_choice")["names"] == ["tool_choice"]
    expected = {"logit_bias": {"sea": 2.0}, "n_indent": 4, "t_max_predict_ms": 1500}
    for name, value in expected.items():
        found = parameter(ended, name)
        assert (found["value"], found["source"], found["names"]) == (value, "request", [name])


def test_reasons_are_given(server: ServerProcess) -> None:
    body = {"model": "demo", "prompt": "x", "temperature": 0, "top_k": 3, "user": "me", "length_penalty": 2.0}
    told = explained(server, "/v1/completions", body)
    why = {one["name"]: one["why"] for one in told["ignored"]}
    assert set(why) == {"top_k", "user", "length_penalty"}
    assert "sampling" in why["top_k"]
    assert "beam" in why["length_penalty"]


def test_deadlines_and_other_limits_are_told(server: ServerProcess) -> None:
    told = explained(server, "/v1/completions", {"model": "demo", "prompt": "x"}, **{"X-Request-Timeout-Ms": "1500"})
    assert told["limits"]["timeout_s"] == 1.5
    assert told["limits"]["context_tokens"] == 2048
    assert told["limits"]["others"]["max_logprobs"] == 20


@pytest.mark.full("takes the seconds of processor time after which it gives up")
def test_who_decided_is_left_open_for_a_call_made_to_take_long(server: ServerProcess) -> None:
    message = {"role": "user", "content": "Hi", **{f"field{number}": 1 for number in range(4000)}}
    told = explained(server, "/v1/completions", {"model": "demo", "prompt": "Hi", "messages": [message]})
    assert any("too large to find out who decided" in note for note in told["notes"])
    assert parameter(told, "max_tokens")["source"]


def test_the_engine_itself_is_asked_although_another_one_may_take_its_place() -> None:
    runner = FakeRunner(vocab_size=24)
    engine = RenewableEngine(BuiltEngine(RollingEngine(runner, Sampler(24), RollingConfig())))
    engine.capabilities.check(make_request([1]))  # what an engine can do does not tell how it is
    with pytest.raises(EngineDead, match="was not started"):
        check_request(engine, make_request([1]))


@table(
    ("asked", "status"),
    [
        ({"path": "/nothing", "body": {}}, 404),
        ({"path": "/v1/completions", "method": "PUT", "body": {}}, 405),
        ({"path": "/ping", "method": "GET"}, 400),
        ({"body": {}}, 400),
        ([1], 400),
    ],
)
def test_what_describes_no_call_is_refused(server: ServerProcess, asked: Any, status: int) -> None:
    answer = httpx.post(f"{server.base_url}/explain", json=asked)
    assert answer.status_code == status
    assert answer.json()["error"]
    if status == 405:
        assert answer.headers["allow"] == "POST"
        assert "a method of the call must be POST" in answer.text


def test_the_command_asks_a_server(server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = tmp_path / "call.json"
    request.write_text(
        json.dumps({"path": "/v1/completions", "body": {"model": "demo", "prompt": "The sea", "max_tokens": 3}})
    )
    assert main(["explain", "--request", str(request), "--url", server.base_url]) == 0
    text = capsys.readouterr().out
    assert "  | The sea" in text
    assert "max_tokens = 3: request (max_tokens)" in text
    request.write_text(json.dumps({"model": "demo", "prompt": "x", "max_tokens": -3}))
    words = ["explain", "--request", str(request), "--path", "/v3/completions", "--url", server.base_url, "--json"]
    assert main(words) == 1
    assert json.loads(capsys.readouterr().out)["refusal"]["status"] == 400


def test_the_command_loads_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where `demo` is the bundled model
    (tmp_path / "prompt.txt").write_text("Once upon a time")
    words = ["explain", "--request", "prompt.txt", "--path", "/invocations", "demo", "--dtype", "f32"]
    assert main([*words, "--strict"]) == 0
    out = capsys.readouterr().out
    assert "  | Once upon a time" in out
    assert "model demo" in out


def test_what_the_command_cannot_do_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "none.json")
    assert main(["explain", "--request", missing]) == 2
    assert "none.json" in capsys.readouterr().err
    request = tmp_path / "r.json"
    request.write_text('{"path": "/ping", "method": "GET"}')
    assert main(["explain", "--request", str(request), "--url", "http://127.0.0.1:9"]) == 1
    assert main(["explain", "--request", str(request), "--url", "http://x", "demo"]) == 2
