"""All APIs over `--engine remote` in front of other projects' servers: the greedy answers are the built-in engine's.

What a server cannot do is refused by name. Servers that the environment does not name are left out (docs/testing.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.other_servers import OTHERS, OtherServer, sample_of
from tests.support.server_process import ServerProcess, serve

MAX_MODEL_LEN = 256
PROMPT = "What is deep learning?"
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["b", "c"]}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
COMPLETION = {"model": "demo", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
CHAT = {"model": "demo", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 12, "temperature": 0}
LMI = {"inputs": PROMPT, "parameters": {"max_new_tokens": 12, "do_sample": False, "details": True}}

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def ours() -> Iterator[ServerProcess]:
    """The built-in engine."""
    with serve("--name", "demo", "--dtype", "f32", "--max-model-len", str(MAX_MODEL_LEN)) as server:
        yield server


def _parameter(other: OtherServer) -> object:
    return pytest.param(other, id=other.name, marks=pytest.mark.skipif(not other.is_there, reason=other.reason))


@pytest.fixture(scope="module", params=[_parameter(other) for other in OTHERS])
def behind(request: pytest.FixtureRequest) -> Iterator[tuple[OtherServer, str]]:
    """A server, and its address."""
    other: OtherServer = request.param
    with other.running(MAX_MODEL_LEN) as url:
        yield other, url


@pytest.fixture(scope="module")
def front(behind: tuple[OtherServer, str]) -> Iterator[tuple[str, ServerProcess]]:
    """The name of the server, and dragoman in front of it."""
    other, url = behind
    with serve("--name", "demo", "--engine", "remote", "--upstream", url) as server:
        yield other.name, server


CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "LMI": ("/invocations", LMI),
    "LMI, streamed": ("/invocations", LMI | {"stream": True}),
    "LMI, stopped": ("/invocations", {"inputs": PROMPT, "parameters": {"stop": ["learn"], "max_new_tokens": 40}}),
    "completions": ("/v1/completions", COMPLETION),
    "completions, streamed": (
        "/v1/completions",
        COMPLETION | {"stream": True, "stream_options": {"include_usage": True}},
    ),
    "completions, several": ("/v1/completions", COMPLETION | {"n": 2}),
    "completions with log-probabilities": ("/v1/completions", COMPLETION | {"logprobs": 3}),
    "completions of token ids": ("/v1/completions", COMPLETION | {"prompt": [[419, 295, 1453], [1367, 42]]}),
    "completions to their end": ("/v1/completions", COMPLETION | {"max_tokens": 150}),
    "completions with penalties": ("/v1/completions", COMPLETION | {"frequency_penalty": 1.5, "presence_penalty": 0.5}),
    "completions with a bias": ("/v1/completions", COMPLETION | {"logit_bias": {"270": -100}}),
    "completions that fit a schema": ("/v1/completions", COMPLETION | {"guided_json": SCHEMA, "max_tokens": 30}),
    "the best of several": ("/v1/completions", COMPLETION | {"best_of": 3}),
    "beams": ("/v1/completions", COMPLETION | {"use_beam_search": True, "best_of": 3, "n": 2}),
    "the prompt's log-probabilities": ("/v1/completions", COMPLETION | {"logprobs": 2, "echo": True}),
    "at least so many": ("/v1/completions", COMPLETION | {"min_tokens": 12}),
    "chat": ("/v1/chat/completions", CHAT),
    "chat, streamed": ("/v1/chat/completions", CHAT | {"stream": True}),
    "chat with log-probabilities": ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2}),
    "chat with tools": ("/v1/chat/completions", CHAT | {"tools": TOOLS, "max_tokens": 30}),
    "OVMS": ("/v3/completions", COMPLETION),
    "OVMS chat": ("/v3/chat/completions", CHAT | {"stream": True}),
    "TGI": ("/generate", {"inputs": PROMPT, "parameters": {"max_new_tokens": 12, "details": True, "seed": 3}}),
    "TGI, streamed": ("/generate_stream", {"inputs": PROMPT, "parameters": {"max_new_tokens": 12}}),
    "text": ("/api/generate-one?stream=false", {"id": 1, "prompt": PROMPT, "maxLength": 12}),
    "too long": ("/v1/completions", COMPLETION | {"max_tokens": 100_000}),
    "wrong": ("/v1/completions", COMPLETION | {"top_p": 7}),
    "a schema that is none": ("/v1/completions", COMPLETION | {"guided_json": {"type": "strange"}}),
}

REFUSED = {
    "llama.cpp": {
        "beams": "num_beams",
        "the prompt's log-probabilities": "prompt_logprobs",
        "at least so many": "min_tokens",
    },
    "vLLM": {},
}
"""What each server cannot do: call -> the parameter that is named."""


def _ask(server: ServerProcess, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Status and answer; of a stream the texts, put together: how they are spread over events differs."""
    answer = httpx.post(server.base_url + path, json=body, timeout=120)
    events = [line.removeprefix("data:").strip() for line in answer.text.splitlines()]
    if path == "/generate_stream" or body.get("stream"):
        return answer.status_code, "".join(_texts([json.loads(event) for event in events if event.startswith("{")]))
    is_json = answer.headers["content-type"].startswith("application/json")
    return answer.status_code, answer.json() if is_json else answer.text


def _texts(value: Any) -> Iterator[str]:
    """All texts that were generated, wherever they stand."""
    if isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            if key in ("text", "content") and isinstance(one, str):
                yield one
            elif key != "details":
                yield from _texts(one)


def _assert_alike(ours: Any, theirs: Any, where: str = "") -> None:
    """The same but for ids, times, what was cached, and log-probabilities' last digits."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), where
        for key in ours.keys() - {"created", "cached_tokens", "system_fingerprint", "request_id", "trace_id"}:
            _assert_alike(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            _assert_alike(one, other, f"{where}.{place}")
    elif isinstance(ours, float) and isinstance(theirs, float):
        assert ours == pytest.approx(theirs, abs=0.02), where
    elif not (where.endswith(".id") and isinstance(ours, str)):
        assert ours == theirs, where


@pytest.mark.parametrize("name", CALLS)
def test_answers_are_those_of_the_built_in_engine_or_refused_by_name(
    name: str, front: tuple[str, ServerProcess], ours: ServerProcess
) -> None:
    other, server = front
    path, body = CALLS[name]
    expected_status, expected = _ask(ours, path, body)
    status, answer = _ask(server, path, body)
    refused = REFUSED[other].get(name)
    if refused is not None:
        assert status == 400, answer
        assert answer["error"]["param"] == refused
        return
    assert status == expected_status, answer
    if name == "completions that fit a schema":  # each has its own idea of where blanks go
        assert json.loads(answer["choices"][0]["text"])["a"] in ("b", "c")
        return
    _assert_alike(expected, answer)


def test_sampling_is_repeatable_and_other_seeds_say_something_else(front: tuple[str, ServerProcess]) -> None:
    _, server = front

    def sampled(seed: int) -> str:
        status, answer = _ask(server, "/v1/completions", COMPLETION | {"temperature": 2.0, "seed": seed})
        assert status == 200, answer
        text: str = answer["choices"][0]["text"]
        return text

    first = [sampled(seed) for seed in range(5)]
    assert [sampled(seed) for seed in range(5)] == first
    assert len(set(first)) > 1


def test_characters_of_several_tokens_come_whole_with_all_their_tokens(
    front: tuple[str, ServerProcess], ours: ServerProcess
) -> None:
    body = COMPLETION | {"guided_json": {"const": "本 🐉 é"}, "max_tokens": 40, "return_token_ids": True}
    answers = [_ask(server, "/v1/completions", body)[1]["choices"][0] for server in (front[1], ours)]
    assert json.loads(answers[0]["text"]) == json.loads(answers[1]["text"]) == "本 🐉 é"
    assert set("本🐉é") <= set(answers[0]["text"])
    assert len(answers[0]["token_ids"]) > 8


def test_cached_prompt_tokens_are_told(front: tuple[str, ServerProcess]) -> None:
    _, server = front
    body = COMPLETION | {"prompt": "cached " + PROMPT * 35, "max_tokens": 2}
    counts = []
    for _ in range(2):
        status, answer = _ask(server, "/v1/completions", body)
        assert status == 200, answer
        counts.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert counts[0] < counts[1]


def test_a_client_that_leaves_ends_the_work_behind(
    front: tuple[str, ServerProcess], behind: tuple[OtherServer, str]
) -> None:
    _, server = front
    other, url = behind
    body = COMPLETION | {"max_tokens": 200, "n": 4, "stream": True, "ignore_eos": True}
    before = sample_of(url, other.generated)
    with httpx.stream("POST", f"{server.base_url}/v1/completions", json=body, timeout=60) as answer:
        next(answer.iter_lines())
    while server.metrics()["dragoman_upstream_requests"]:
        pass
    # As many tokens again: had the others gone on, they would have ended by then.
    assert _ask(server, "/v1/completions", body | {"stream": False})[0] == 200
    assert 4 * 200 < sample_of(url, other.generated) - before < 2 * 4 * 200


def test_the_start_tells_what_is_behind(front: tuple[str, ServerProcess]) -> None:
    other, server = front
    assert re.search(rf"1 of 1 servers: {re.escape(other)}", "".join(server.output))
