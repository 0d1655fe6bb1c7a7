"""A server whose engine is another server: whoever asks the one gets what the other answers, in all APIs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dragoman.config.resolve import demo_model_dir
from tests.support.adapters import matrices_of, write_adapter
from tests.support.server_process import ServerProcess, serve
from tests.support.tables import table

PROMPT = "What is deep learning?"
KEY = {"authorization": "Bearer of good news"}
MESSAGES = [{"role": "user", "content": PROMPT}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    modules = matrices_of(demo_model_dir(), ("q_proj", "v_proj", "down_proj"))
    sql = write_adapter(tmp_path_factory.mktemp("adapters") / "sql", modules)
    with serve(
        "--name", "demo", "--dtype", "f32", "--lora", f"sql={sql}", environ={"DRAGOMAN_API_KEY": "of good news"}
    ) as running:
        yield running


@pytest.fixture(scope="module")
def front(upstream: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its model directory has no weights."""
    directory = tmp_path_factory.mktemp("weightless")
    for file in demo_model_dir().iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            shutil.copy(file, directory / file.name)
    arguments = (str(directory), "--name", "demo", "--engine", "remote", "--upstream", upstream.base_url)
    with serve(*arguments, environ={"DRAGOMAN_UPSTREAM_API_KEY": "of good news"}) as running:
        yield running


LMI = {"inputs": PROMPT, "parameters": {"max_new_tokens": 12, "details": True}}
OPENAI = {"model": "demo", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
CHAT = {"model": "demo", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "LMI": ("/invocations", LMI),
    "LMI, sampled": ("/invocations", {"inputs": PROMPT, "parameters": {"do_sample": True, "seed": 3, "top_k": 50}}),
    "LMI, streamed": ("/invocations", LMI | {"stream": True}),
    "LMI, stopped": ("/invocations", {"inputs": PROMPT, "parameters": {"stop": ["learn"], "max_new_tokens": 40}}),
    "completions": ("/v1/completions", OPENAI),
    "completions, streamed": ("/v1/completions", OPENAI | {"stream": True}),
    "completions with log-probabilities": ("/v1/completions", OPENAI | {"logprobs": 3, "echo": True}),
    "completions, several and sampled": ("/v1/completions", OPENAI | {"temperature": 1.0, "n": 3, "seed": 11}),
    "completions, the best of several": (
        "/v1/completions",
        OPENAI | {"temperature": 1.0, "n": 2, "best_of": 4, "seed": 5, "logprobs": 0},
    ),
    "beams": ("/v1/completions", OPENAI | {"use_beam_search": True, "best_of": 4, "n": 2}),
    "completions with many parameters": (
        "/v1/completions",
        OPENAI
        | {
            "temperature": 0.9,
            "seed": 2,
            "top_k": 40,
            "top_p": 0.9,
            "min_p": 0.01,
            "typical_p": 0.95,
            "top_n_sigma": 4.0,
            "xtc_probability": 0.5,
            "xtc_threshold": 0.05,
            "dry_multiplier": 0.8,
            "dry_allowed_length": 1,
            "dry_sequence_breakers": ["."],
            "min_tokens": 12,
            "repetition_penalty": 1.2,
            "presence_penalty": 0.4,
            "frequency_penalty": 0.3,
            "bad_words": ["learning"],
            "logit_bias": {"270": -5},
            "return_token_ids": True,
        },
    ),
    "completions of token ids": ("/v1/completions", OPENAI | {"prompt": [[419, 295, 1453], [1367, 42]]}),
    "completions that fit a schema": ("/v1/completions", OPENAI | {"guided_json": SCHEMA, "max_tokens": 30}),
    "completions of a grammar": ("/v1/completions", OPENAI | {"guided_grammar": 'start: "a" | "b" start'}),
    "chat": ("/v1/chat/completions", CHAT),
    "chat, streamed": ("/v1/chat/completions", CHAT | {"stream": True, "stream_options": {"include_usage": True}}),
    "chat with log-probabilities": ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2}),
    "chat with tools": ("/v1/chat/completions", CHAT | {"tools": TOOLS, "max_tokens": 30}),
    "OVMS": ("/v3/completions", OPENAI),
    "OVMS chat": ("/v3/chat/completions", CHAT | {"stream": True}),
    "TGI": ("/generate", {"inputs": PROMPT, "parameters": {"max_new_tokens": 12, "decoder_input_details": True}}),
    "TGI, streamed": ("/generate_stream", {"inputs": PROMPT, "parameters": {"max_new_tokens": 12}}),
    "text": ("/api/generate-one?stream=false", {"id": 1, "prompt": PROMPT, "maxLength": 12}),
    "too long": ("/v1/completions", OPENAI | {"max_tokens": 100_000}),
    "wrong": ("/v1/completions", OPENAI | {"top_p": 7}),
    "a schema that is none": ("/v1/completions", OPENAI | {"guided_json": {"type": "strange"}}),
}

WRONG = ("too long", "wrong", "a schema that is none")

_CHANGING = re.compile(
    r'"(?:id|created|system_fingerprint|cached_tokens|(?:request|trace)_id)":\s?(?:"[^"]*"|\d+)|call_\w+'
)


def ask(server: ServerProcess, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """Status and body, without what is different each time."""
    answer = httpx.post(server.base_url + path, json=body, headers=KEY, timeout=120)
    return answer.status_code, _CHANGING.sub("", answer.text)


@table("name", CALLS)
def test_answers_are_those_of_the_server_behind(name: str, front: ServerProcess, upstream: ServerProcess) -> None:
    path, body = CALLS[name]
    status, text = ask(front, path, body)
    expected_status, expected = ask(upstream, path, body)
    assert (status, _joined(text)) == (expected_status, _joined(expected))
    assert (status == 400) == (name in WRONG), text
    assert status in (200, 206, 400)
    assert len(text) > 20


_TEXT = re.compile(r'"(?:text|content)":\s?"((?:[^"\\]|\\.)*)"')


def _joined(text: str) -> Any:
    """The text of a stream and its last event without one: how tokens are spread over events depends on the moment."""
    events = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    if not events:
        return text
    return "".join(_TEXT.findall("".join(events))), _TEXT.sub("", events[-1])


def test_what_cannot_be_had_from_behind_is_refused_by_name(front: ServerProcess) -> None:
    beams = {"use_beam_search": True, "best_of": 4, "repetition_penalty": 1.2}
    status, text = ask(front, "/v1/completions", OPENAI | beams)
    assert status == 400
    assert json.loads(text)["error"]["param"] == "repetition_penalty"


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "streamed"])
def test_cached_prompt_tokens_are_told_as_the_server_behind_tells_them(is_stream: bool, front: ServerProcess) -> None:
    body = OPENAI | {"prompt": f"{is_stream} " + PROMPT * 20}
    if is_stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    told = []
    for _ in range(2):
        text = httpx.post(f"{front.base_url}/v1/completions", json=body, headers=KEY, timeout=60).text
        found = re.search(r'"cached_tokens":\s?(\d+)', text)
        assert found is not None, text
        told.append(int(found.group(1)))
    assert told[0] == 0
    assert told[1] >= 64


def test_the_start_tells_what_is_behind_and_the_metrics_how_it_is(
    front: ServerProcess, upstream: ServerProcess
) -> None:
    assert any("1 of 1 servers: dragoman" in line for line in front.output), "".join(front.output)
    assert not any("of good news" in line for line in front.output)
    metrics = front.metrics()
    assert metrics["dragoman_upstream_healthy"] == 1
    assert metrics["dragoman_upstream_requests"] == 0
    assert metrics["dragoman_generation_tokens_total"] > 0


def test_a_client_that_leaves_ends_the_work_behind(front: ServerProcess, upstream: ServerProcess) -> None:
    body = OPENAI | {"max_tokens": 400, "n": 20, "stream": True, "ignore_eos": True}
    before = _metric(upstream, "dragoman_generation_tokens_total")
    with httpx.stream("POST", f"{front.base_url}/v1/completions", json=body, timeout=60) as answer:
        next(answer.iter_lines())
    while _metric(upstream, "dragoman_requests_running"):
        pass
    assert 0 < _metric(upstream, "dragoman_generation_tokens_total") - before < 20 * 400


def _metric(server: ServerProcess, name: str) -> float:
    text = httpx.get(f"{server.base_url}/metrics", headers=KEY, timeout=30).text
    found = re.search(rf"^{name}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)
    assert found is not None, text
    return float(found.group(1))


@pytest.mark.parametrize(
    "given",
    [
        pytest.param((), marks=pytest.mark.full("a start; tests/engine/remote/test_getting_to_know.py refuses it too")),
        ("--upstream", "http://127.0.0.1:9"),
    ],
)
def test_a_start_without_a_server_that_answers_ends_with_one_line(given: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError, match="upstream"), serve("--engine", "remote", *given, str(demo_model_dir())):
        pass


def test_the_adapters_of_the_server_behind_are_asked_for_in_each_api(
    upstream: ServerProcess, front: ServerProcess
) -> None:
    (listed,) = [
        model
        for model in httpx.get(f"{front.base_url}/v1/models", timeout=60).json()["data"]
        if model.get("parent") == "demo"
    ]
    assert listed["id"] == "sql"
    bodies: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "/v1/completions": (OPENAI, {"model": "sql"}),
        "/v1/chat/completions": (CHAT, {"model": "sql"}),
        "/invocations": (LMI, {"adapters": "sql"}),
        "/generate": (LMI, {"parameters": {"max_new_tokens": 12, "adapter_id": "sql"}}),
    }
    for path, (body, asked) in bodies.items():
        plain, there, here = (
            httpx.post(server.base_url + path, json=sent, headers=headers, timeout=60)
            for server, sent, headers in (
                (front, body, {}),
                (upstream, {**body, **asked}, KEY),
                (front, {**body, **asked}, {}),
            )
        )
        assert here.status_code == 200, here.text
        assert texts_of(here.json()) == texts_of(there.json()) != texts_of(plain.json())
    unknown = httpx.post(f"{front.base_url}/invocations", json={**LMI, "adapters": "no"}, timeout=60)
    assert unknown.status_code == 424


def texts_of(answer: Any) -> list[str]:
    """The texts in an answer of any API."""
    if "generated_text" in answer:
        return [answer["generated_text"]]
    return [choice.get("text") or choice["message"]["content"] for choice in answer["choices"]]
