"""Pictures over a server with `--engine vllm`: in f32 the answers are those of the built-in engine, through every API.

One server of each kind for all tests; vLLM's takes half a minute to start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from random import Random
from typing import Any

import httpx
import pytest
from PIL import Image

from demo.evaluate_pictures import Case, cases
from tests.e2e.test_vllm import differences, folded, post
from tests.support.drawn_pictures import image_part, messages
from tests.support.server_process import ServerProcess, serve

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="the package vllm is not installed: make test-vllm"),
]

COMMON = ("demo-vision", "--dtype", "f32", "--max-model-len", "512", "--kv-cache-gb", "0.125")
PICTURES = ("--limit-mm-per-prompt", "image=2")
ON_VLLM = ("--engine", "vllm", "--enforce-eager", "true")
CHAT = {"model": "demo-vision", "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def ours() -> Iterator[ServerProcess]:
    """The built-in engine."""
    with serve(*COMMON, *PICTURES) as server:
        yield server


@pytest.fixture(scope="module")
def vllm() -> Iterator[ServerProcess]:
    """vLLM."""
    with serve(*COMMON, *PICTURES, *ON_VLLM, patience_s=600) as server:
        yield server


@pytest.fixture(scope="module")
def asked() -> list[Case]:
    """Pictures and wordings that training never saw, one of every kind."""
    return cases(1, Random("drawn for vLLM"))


def assert_same_answer(path: str, body: dict[str, Any], ours: ServerProcess, vllm: ServerProcess) -> Any:
    """The answer, which is both servers'."""
    expected, answer = post(ours, path, body), post(vllm, path, body)
    assert expected.status_code == answer.status_code == 200, answer.text
    assert list(differences(expected.json(), answer.json())) == []
    return answer.json()


def test_drawn_pictures_are_answered_as_by_the_built_in_engine(
    asked: list[Case], ours: ServerProcess, vllm: ServerProcess
) -> None:
    right = 0
    for case in asked:
        body = {**CHAT, "messages": messages(case), "logprobs": True, "top_logprobs": 2}
        told = assert_same_answer("/v1/chat/completions", body, ours, vllm)
        right += told["choices"][0]["message"]["content"].strip() == case.answer
    assert right >= len(asked) * 0.8, "pictures are seen"


@pytest.mark.parametrize("path", ["/invocations", "/predictions/demo-vision", "/v3/chat/completions"])
def test_every_api_that_takes_pictures_answers_the_same(
    path: str, asked: list[Case], ours: ServerProcess, vllm: ServerProcess
) -> None:
    for case in asked[::6]:
        assert_same_answer(path, {**CHAT, "messages": messages(case)}, ours, vllm)


def test_several_pictures_and_several_answers(ours: ServerProcess, vllm: ServerProcess) -> None:
    first, second = (image_part(Image.new("RGB", (90, 60), color)) for color in ("red", "blue"))
    content = [first, {"type": "text", "text": "And this?"}, second]
    body = {**CHAT, "messages": [{"role": "user", "content": content}], "n": 2}
    both = assert_same_answer("/v1/chat/completions", body, ours, vllm)
    alone = {**CHAT, "messages": [{"role": "user", "content": content[:2]}]}
    one = assert_same_answer("/v1/chat/completions", alone, ours, vllm)
    assert both["usage"]["prompt_tokens"] > one["usage"]["prompt_tokens"]
    assert_same_answer("/v1/chat/completions", {**alone, "use_beam_search": True, "n": 2}, ours, vllm)


def test_streams_are_those_of_the_built_in_engine(asked: list[Case], ours: ServerProcess, vllm: ServerProcess) -> None:
    body = {**CHAT, "messages": messages(asked[0]), "stream": True}
    streams = []
    for server in (ours, vllm):
        with httpx.stream("POST", server.base_url + "/v1/chat/completions", json=body, timeout=60) as answer:
            assert answer.status_code == 200
            lines = [line.removeprefix("data:").strip() for line in answer.iter_lines()]
        streams.append([json.loads(line) for line in lines if line.startswith("{")])
    assert list(differences(folded(streams[0]), folded(streams[1]))) == []


def test_what_is_refused_is_refused_alike(asked: list[Case], ours: ServerProcess, vllm: ServerProcess) -> None:
    part = image_part(Image.new("RGB", (40, 30), "red"))
    three = {**CHAT, "messages": [{"role": "user", "content": [part, part, part]}]}
    none = {"type": "image_url", "image_url": {"url": "data:image/png;base64,bm90IGEgcGljdHVyZQ=="}}
    broken = {**CHAT, "messages": [{"role": "user", "content": [none]}]}
    for body, says in ((three, "at most 2 images (option.limit_mm_per_prompt), got 3"), (broken, "image_url")):
        expected, answer = post(ours, "/v1/chat/completions", body), post(vllm, "/v1/chat/completions", body)
        assert answer.status_code == expected.status_code == 400
        assert says in answer.text
        assert answer.json() == expected.json()
    assert_same_answer("/v1/chat/completions", {**CHAT, "messages": messages(asked[0])}, ours, vllm)


def test_a_client_that_leaves_leaves_nothing_running(asked: list[Case], vllm: ServerProcess) -> None:
    body = {**CHAT, "messages": messages(asked[0]), "max_tokens": 300, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", vllm.base_url + "/v1/chat/completions", json=body, timeout=60) as answer:
        next(answer.iter_lines())
    while vllm.metrics()["vllm:num_requests_running"]:
        pass


def test_without_room_for_pictures_the_model_takes_texts_only(asked: list[Case]) -> None:
    with serve(*COMMON, "--limit-mm-per-prompt", "image=0", *ON_VLLM, patience_s=600) as server:
        refused = post(server, "/v1/chat/completions", {**CHAT, "messages": messages(asked[0])})
        assert refused.status_code == 400
        assert "image" in refused.text
        text = {**CHAT, "messages": [{"role": "user", "content": "What is this?"}]}
        assert post(server, "/v1/chat/completions", text).status_code == 200
        assert "no pictures: limit_mm_per_prompt is 0" in "".join(server.output)
