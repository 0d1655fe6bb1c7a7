"""All APIs over a server with `--engine vllm`, on the demo model: in f32 the answers are those of the built-in engine.

One server of each kind for all tests; vLLM's takes half a minute to start.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from dragoman.config.bundled import BUNDLED
from tests.support.adapters import matrices_of, write_adapter
from tests.support.server_process import ServerProcess, serve
from tests.support.threads import is_running

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="the package vllm is not installed: make test-vllm"),
]

PROMPT = "What is deep learning?"
COMMON = ("--dtype", "f32", "--max-model-len", "256", "--kv-cache-gb", "0.125")


@pytest.fixture(scope="module")
def ours() -> Iterator[ServerProcess]:
    """The built-in engine, without guesses: with them a chunk of a stream may hold several tokens."""
    with serve(*COMMON, "--speculation", "off") as server:
        yield server


@pytest.fixture(scope="module")
def vllm() -> Iterator[ServerProcess]:
    """vLLM."""
    with serve("--engine", "vllm", *COMMON, "--enforce-eager", "true", patience_s=600) as server:
        yield server


def post(server: ServerProcess, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.base_url + path, json=body, timeout=60)


def differences(ours: Any, theirs: Any, where: str = "") -> Iterator[str]:
    """Where two answers are not the same: ids and times always differ, log-probabilities in their last digits."""
    if where.endswith(".id") and isinstance(ours, str):
        return
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        for key in ours:
            if key != "created":
                yield from differences(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for place, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(*pair, f"{where}.{place}")
    elif isinstance(ours, float) and isinstance(theirs, float):
        if ours != pytest.approx(theirs, abs=1e-3):
            yield f"{where}: {ours} and {theirs}"
    elif ours != theirs:
        yield f"{where}: {ours!r} and {theirs!r}"


CHAT = {"model": "demo", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 12, "temperature": 0}
COMPLETION = {"model": "demo", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
LMI = {"inputs": PROMPT, "parameters": {"max_new_tokens": 12, "do_sample": False, "details": True}}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "lmi": ("/invocations", LMI),
    "lmi prompt": ("/invocations", {**LMI, "parameters": {**LMI["parameters"], "decoder_input_details": True}}),  # type: ignore[dict-item]
    "openai chat": ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
    "openai completions": ("/v1/completions", {**COMPLETION, "logprobs": 2, "stop": ["learning"]}),
    "openai best_of": ("/v1/completions", {**COMPLETION, "best_of": 2}),
    "beams": ("/invocations", {"inputs": PROMPT, "parameters": {"num_beams": 3, "max_new_tokens": 12, "details": True}}),
    "openai n": ("/v1/completions", {**COMPLETION, "n": 2}),
    "openai penalties": ("/v1/completions", {**COMPLETION, "frequency_penalty": 1.5, "presence_penalty": 0.5}),
    "ovms chat": ("/v3/chat/completions", CHAT),
    "ovms completions": ("/v3/completions", {**COMPLETION, "repetition_penalty": 1.2}),
    "schema": (
        "/v1/chat/completions",
        {**CHAT, "max_tokens": 60, "response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"type": "object", "properties": {"a": {"enum": ["b", "c"]}}, "required": ["a"]}}}},
    ),
    "tgi": ("/generate", {"inputs": PROMPT, "parameters": {"max_new_tokens": 12, "details": True, "seed": 3}}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_greedy_answers_are_those_of_the_built_in_engine(name: str, vllm: ServerProcess, ours: ServerProcess) -> None:
    path, body = CALLS[name]
    expected, answer = post(ours, path, body), post(vllm, path, body)
    assert expected.status_code == answer.status_code == 200, answer.text
    assert list(differences(expected.json(), answer.json())) == []


STREAMED: dict[str, tuple[str, dict[str, Any]]] = {
    "lmi": ("/invocations", {**LMI, "stream": True}),
    "openai chat": ("/v1/chat/completions", {**CHAT, "stream": True}),
    "openai completions": ("/v1/completions", {**COMPLETION, "stream": True}),
    "ovms completions": ("/v3/completions", {**COMPLETION, "stream": True}),
    "tgi": ("/generate_stream", {"inputs": PROMPT, "parameters": {"max_new_tokens": 12}}),
}


def folded(events: list[Any]) -> list[Any]:
    """A stream's texts as one, by where they stand in an event, and its first and last events without texts."""
    texts: dict[str, str] = {}

    def without_texts(value: Any, where: str) -> Any:
        if isinstance(value, list):
            return [without_texts(item, f"{where}.{index}") for index, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        kept = {}
        for key, item in value.items():
            if key in ("text", "content") and isinstance(item, str):
                texts[where + key] = texts.get(where + key, "") + item
            elif key not in ("id", "logprob", "log_prob", "created"):
                kept[key] = without_texts(item, f"{where}.{key}")
        return kept

    bare = [without_texts(event, "") for event in events]
    return [texts, bare[0], bare[-1]]


@pytest.mark.parametrize("name", STREAMED)
def test_streams_are_those_of_the_built_in_engine(name: str, vllm: ServerProcess, ours: ServerProcess) -> None:
    path, body = STREAMED[name]
    streams = []
    for server in (ours, vllm):
        with httpx.stream("POST", server.base_url + path, json=body, timeout=60) as answer:
            assert answer.status_code == 200
            lines = [line.removeprefix("data:").strip() for line in answer.iter_lines()]
        streams.append([json.loads(line) for line in lines if line.startswith("{")])
    assert len(streams[0]) > 5
    # vLLM hands out two tokens at once where its reader was busy: what they say together is the same.
    assert list(differences(folded(streams[0]), folded(streams[1]))) == []


def test_the_plain_text_service_answers_the_same(vllm: ServerProcess, ours: ServerProcess) -> None:
    texts = [
        post(server, "/api/generate-one", {"id": 1, "prompt": PROMPT, "maxLength": 12}).text for server in (ours, vllm)
    ]
    assert "learning" in texts[0]
    assert texts[0] == texts[1]


def test_openais_client_streams_and_samples_repeatably(vllm: ServerProcess) -> None:
    def sampled(seed: int) -> str:
        with openai.OpenAI(base_url=f"{vllm.base_url}/v1", api_key="none") as client:
            chunks = client.completions.create(
                model="demo", prompt=PROMPT, max_tokens=16, temperature=1.5, seed=seed, stream=True
            )
            return "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)

    first = sampled(1)
    assert first
    assert sampled(1) == first
    assert sampled(2) != first


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        (
            "/invocations",
            {"inputs": PROMPT, "parameters": {"num_beams": 3, "repetition_penalty": 1.5}},
            "repetition_penalty 1.5",
        ),
        ("/v1/completions", {**COMPLETION, "temperature": 0.001}, "temperature 0.001"),
        ("/invocations", {"inputs": PROMPT, "parameters": {"typical_p": 0.5, "do_sample": True}}, "typical_p"),
    ],
)
def test_what_vllm_cannot_do_is_refused_by_name(
    path: str, body: dict[str, Any], says: str, vllm: ServerProcess
) -> None:
    answer = post(vllm, path, body)
    assert 400 <= answer.status_code < 500, answer.text
    assert says in answer.text


def test_its_metrics_stand_beside_ours(vllm: ServerProcess) -> None:
    post(vllm, "/v1/completions", COMPLETION)
    metrics = vllm.metrics()
    assert metrics["dragoman_generation_tokens_total"] > 0
    assert metrics["vllm:generation_tokens_total"] > 0


def test_a_client_that_leaves_leaves_nothing_running(vllm: ServerProcess) -> None:
    body = {**COMPLETION, "max_tokens": 200, "n": 8, "stream": True, "ignore_eos": True}
    before = vllm.metrics()["vllm:generation_tokens_total"]
    with httpx.stream("POST", vllm.base_url + "/v1/completions", json=body, timeout=60) as answer:
        next(answer.iter_lines())
    while vllm.metrics()["vllm:num_requests_running"]:
        pass
    assert 0 < vllm.metrics()["vllm:generation_tokens_total"] - before < 8 * 200


def _processes(parent: int) -> list[int]:
    """All processes below that one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                child = int(path.parent.name)
                found += [child, *_processes(child)]
    return found


def test_an_interrupt_at_the_terminal_lets_running_requests_finish() -> None:
    patient = ("--drain-timeout", "240")  # on a busy machine 200 tokens take longer than the usual 30 seconds
    with serve("--engine", "vllm", *COMMON, "--enforce-eager", "true", *patient, patience_s=600) as server:
        body = {**COMPLETION, "max_tokens": 200, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", server.base_url + "/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            for process in [*_processes(server.process.pid), server.process.pid]:  # as a terminal does at Ctrl+C
                os.kill(process, signal.SIGINT)
            told = [line for line in lines if line.startswith("data: {")]
        last = json.loads(told[-1][6:])
        assert "choices" in last, last
        assert last["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(60) == 0


def test_it_ends_when_it_is_told_to() -> None:
    with serve("--engine", "vllm", *COMMON, "--enforce-eager", "true", patience_s=600) as server:
        assert post(server, "/v1/completions", COMPLETION).status_code == 200
        processes = _processes(server.process.pid)
        assert _engine_process(server) in processes
        assert server.terminate() == 0
        _wait_ended(processes)


def _wait_ended(processes: list[int]) -> None:
    """Return once none of them is left; those that Python itself starts notice their parent's end a moment later."""
    end = time.monotonic() + 30
    while left := [process for process in processes if is_running(process)]:
        assert time.monotonic() < end, left


def _engine_process(server: ServerProcess) -> int:
    """The one process below the server in which vLLM's engine is."""
    names = {process: Path(f"/proc/{process}/cmdline").read_bytes() for process in _processes(server.process.pid)}
    (found,) = [process for process, name in names.items() if b"EngineCore" in name]
    return found


def test_when_vllms_process_is_killed_what_runs_fails_and_the_server_answers_again_by_itself() -> None:
    with serve("--engine", "vllm", *COMMON, "--enforce-eager", "true", patience_s=600) as server:

        def status(path: str) -> int:
            return httpx.get(server.base_url + path, timeout=60).status_code

        expected = post(server, "/v1/completions", COMPLETION).json()["choices"]
        first, processes = _engine_process(server), _processes(server.process.pid)
        body = {**COMPLETION, "max_tokens": 200, "n": 8, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", server.base_url + "/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            os.kill(first, signal.SIGKILL)
            told = [line for line in lines if line.startswith("data: {")]
        assert "vLLM's engine has died" in json.loads(told[-1][6:])["error"]["message"]
        assert [status("/ping"), status("/health")] == [500, 500]
        while (refused := post(server, "/v1/completions", COMPLETION)).status_code != 503:
            assert refused.status_code == 500  # as long as nobody has looked at the engine
        assert "retry-after" in refused.headers
        assert [status("/ping"), status("/v2/health/live")] == [500, 200]
        while status("/ping") != 200:
            assert server.process.poll() is None
        assert status("/health") == 200
        assert post(server, "/v1/completions", COMPLETION).json()["choices"] == expected
        assert server.metrics()["dragoman_engine_restarts_total"] == 1
        assert _engine_process(server) != first
        processes += _processes(server.process.pid)
        assert server.terminate() == 0
        _wait_ended(processes)


def test_adapters_are_asked_for_and_come_and_go_as_on_the_built_in_engine(tmp_path: Path) -> None:
    modules = matrices_of(BUNDLED["demo"], ("q_proj", "v_proj", "down_proj"))
    for seed, name in enumerate(("one", "two")):
        write_adapter(tmp_path / name, modules, seed=seed)
    lora = ("--lora", f"one={tmp_path / 'one'}", "--enable-lora", "--max-loras", "2", "--lora-store", str(tmp_path))
    told: list[list[Any]] = []
    for engine in ((), ("--engine", "vllm", "--enforce-eager", "true")):
        with serve(*engine, *COMMON, *lora, "--name", "demo", patience_s=600) as server:
            loaded = post(server, "/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": "two"})
            assert loaded.status_code == 200, loaded.text
            listed = httpx.get(f"{server.base_url}/v1/models", timeout=60).json()["data"]
            models = [(model["id"], model.get("parent")) for model in listed]
            texts = [
                post(server, "/v1/completions", {**COMPLETION, "model": name}).json()["choices"][0]["text"]
                for name in ("demo", "one", "sql")
            ]
            lmi = post(server, "/invocations", {**LMI, "adapters": "sql"}).json()["generated_text"]
            tgi = post(server, "/generate", {**LMI, "parameters": {"max_new_tokens": 12, "adapter_id": "one"}}).json()
            assert (lmi, tgi["generated_text"]) == (texts[2], texts[1])
            assert len(set(texts)) == 3
            assert post(server, "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "no"}).status_code == 400
            assert post(server, "/v1/unload_lora_adapter", {"lora_name": "sql"}).status_code == 200
            assert post(server, "/v1/completions", {**COMPLETION, "model": "sql"}).status_code == 404
            told.append([models, texts])
    assert told[0] == told[1]
