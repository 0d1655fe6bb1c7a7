"""What llama.cpp's editors send, word for word, to a real server with the demo model, and what they look for in the answer.

Sources: llama.vim, autoload/llama.vim; llama.vscode, src/llama-server.ts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.patience import PATIENCE_S
from tests.support.server_process import ServerProcess

PREFIX, MIDDLE, SUFFIX = "def add(a, b):\n", "    return ", "\n\nprint(add(1, 2))\n"
EXTRA = [{"text": "def sub(a, b):\n    return a - b\n", "time": [1, 2], "filename": "sub.py"}]
TIMINGS = (
    "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n", "predicted_ms",
    "predicted_per_token_ms", "predicted_per_second",
)  # fmt: skip


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.base_url, timeout=PATIENCE_S) as client:
        yield client


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    """The answer to a body."""
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def vim(**more: Any) -> dict[str, Any]:
    """What llama.vim sends while somebody types."""
    return {
        "id_slot": 0,
        "input_prefix": PREFIX,
        "input_suffix": SUFFIX,
        "input_extra": EXTRA,
        "prompt": MIDDLE,
        "n_predict": 16,
        "stop": [],
        "n_indent": 4,
        "top_k": 40,
        "top_p": 0.90,
        "samplers": ["top_k", "top_p", "infill"],
        "stream": False,
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1000,
        "response_fields": ["content", *(f"timings/{name}" for name in TIMINGS), "truncated", "tokens_cached"],
        **more,
    }


def test_llama_vim_fills_a_gap(client: httpx.Client) -> None:
    told = post(client, "/infill", **vim())
    assert set(told) == {"content", *(f"timings/{name}" for name in TIMINGS), "truncated", "tokens_cached"}
    assert isinstance(told["content"], str)
    assert 1 <= told["timings/predicted_n"] <= 16
    assert told["timings/prompt_per_second"] > 0


def test_llama_vim_prepares_what_it_will_ask(client: httpx.Client) -> None:
    """Its first call computes the other files, so that the next one finds them."""
    extra = [{"text": "x = 1\n" * 40, "filename": "long.py"}]
    prepared = post(
        client,
        "/infill",
        id_slot=0,
        input_prefix="",
        input_suffix="",
        input_extra=extra,
        prompt="",
        n_predict=0,
        temperature=0.0,
        samplers=[],
        stream=False,
        cache_prompt=True,
        t_max_prompt_ms=1,
        t_max_predict_ms=1,
        response_fields=[""],
    )
    assert prepared == {}
    told = post(client, "/infill", **vim(input_extra=extra))
    assert told["tokens_cached"] > 50


def test_llama_vim_holds_a_conversation(client: httpx.Client) -> None:
    """Before the question is known it has the beginning computed, then it reads the answer's stream."""
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello!"}]
    body = {
        "id_slot": 0,
        "messages": messages,
        "samplers": [],
        "n_predict": 0,
        "cache_prompt": True,
        "response_fields": [""],
    }
    prepared = post(client, "/v1/chat/completions", **body, stream=False)
    assert (prepared["choices"][0]["message"]["content"], prepared["usage"]["completion_tokens"]) == ("", 0)
    asked = {
        "id_slot": 0,
        "messages": messages,
        "min_p": 0.1,
        "temperature": 0.1,
        "samplers": ["min_p", "temperature"],
        "stream": True,
        "cache_prompt": True,
    }
    answer = client.post("/v1/chat/completions", json=asked)
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    deltas = [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas)


def vscode(**more: Any) -> dict[str, Any]:
    """What llama.vscode sends while somebody types."""
    return {
        "id_slot": 0,
        "input_prefix": PREFIX,
        "input_suffix": SUFFIX,
        "input_extra": [{"text": one["text"], "filename": one["filename"]} for one in EXTRA],
        "prompt": MIDDLE,
        "n_predict": 16,
        "n_cmpl": 3,
        "top_k": 40,
        "top_p": 0.99,
        "stream": False,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True,
        "n_indent": 4,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 2500,
        **more,
    }


def test_llama_vscode_fills_a_gap_in_several_ways(client: httpx.Client) -> None:
    told = post(client, "/infill", **vscode())
    assert [one["index"] for one in told] == [0, 1, 2]
    for one in told:
        assert isinstance(one["content"], str)
        assert {"timings", "generation_settings", "tokens_cached", "truncated"} <= one.keys()
    one = post(client, "/infill", **vscode(n_cmpl=1, model="whatever it is called there"))
    assert isinstance(one["content"], str)


def test_llama_vscode_prepares_what_it_will_ask(client: httpx.Client) -> None:
    body = {
        "id_slot": 0,
        "input_prefix": PREFIX,
        "input_suffix": SUFFIX,
        "input_extra": [],
        "prompt": "",
        "n_predict": 0,
    }
    told = post(client, "/infill", **body, samplers=[], cache_prompt=True, t_max_prompt_ms=500, t_max_predict_ms=1)
    assert (told["content"], told["tokens_predicted"]) == ("", 0)


def test_llama_vscode_counts_the_tokens_of_a_conversation(client: httpx.Client) -> None:
    """It renders the messages, counts the prompt's tokens, and looks for the context's size and the server's health."""
    messages = [{"role": "user", "content": "Hello!"}]
    prompt = post(client, "/apply-template", messages=messages, model="demo")["prompt"]
    tokens = post(client, "/tokenize", content=prompt, model="demo", add_special=True, parse_special=True)["tokens"]
    used = post(client, "/v1/chat/completions", messages=messages, max_tokens=1)["usage"]
    assert len(tokens) == used["prompt_tokens"]
    assert client.get("/props?model=demo&autoload=false").json()["default_generation_settings"]["n_ctx"] > 0
    assert client.get("/health").json()["status"] == "ok"


@pytest.mark.needs("post_sampling_probs")
def test_probabilities_after_sampling_are_those_of_what_could_be_drawn(client: httpx.Client) -> None:
    body = {
        "prompt": "This is",
        "n_predict": 6,
        "n_probs": 10,
        "post_sampling_probs": True,
        "top_k": 3,
        "temperature": 2,
    }
    for token in post(client, "/completion", **body)["completion_probabilities"]:
        chances = {one["id"]: one["prob"] for one in token["top_probs"]}
        assert 1 <= len(chances) <= 3
        assert sum(chances.values()) == pytest.approx(1.0, abs=1e-5)
        assert chances[token["id"]] == pytest.approx(token["prob"])


def test_a_completion_is_that_of_openais_api(client: httpx.Client) -> None:
    told = post(client, "/completion", prompt="This is a test", n_predict=12, temperature=0)
    expected = post(client, "/v1/completions", prompt="This is a test", max_tokens=12, temperature=0)
    assert told["content"] == expected["choices"][0]["text"]
    grammar = 'root ::= [a-c]+ "!" [0-9]{2}'
    held = post(client, "/completion", prompt="This is a test", grammar=grammar, n_predict=40, samplers=["top_k"])
    assert held["stop_type"] == "limit" or held["content"][-3] == "!"
    assert set(held["content"]) <= set("abc!0123456789")
