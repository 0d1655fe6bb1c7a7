"""Many clients at once: the same answers as alone, and nothing left behind by those who leave."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import httpx
import pytest

from tests.support.patience import PATIENCE_S
from tests.support.server_process import ServerProcess

PROMPTS = [
    "What is deep learning?",
    "How many ways can I peel an orange",
    "This is a test",
    "Write a story about a garden.",
    "Tell me about bread.",
    "What is a computer?",
    "Explain gravity.",
    "List three fruits.",
]
LENGTH = 24

Ask = Callable[[httpx.AsyncClient, str], Awaitable[str]]


async def lmi(client: httpx.AsyncClient, prompt: str) -> str:
    answer = await client.post("/invocations", json={"inputs": prompt, "parameters": {"max_new_tokens": LENGTH}})
    return str(answer.json()["generated_text"])


async def lmi_stream(client: httpx.AsyncClient, prompt: str) -> str:
    body = {"inputs": prompt, "parameters": {"max_new_tokens": LENGTH}, "stream": True}
    answer = await client.post("/predictions/demo", json=body)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines[-1]["generated_text"] == "".join(line["token"]["text"] for line in lines)
    return str(lines[-1]["generated_text"])


async def completion(client: httpx.AsyncClient, prompt: str) -> str:
    answer = await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": LENGTH, "temperature": 0})
    return str(answer.json()["choices"][0]["text"])


async def ovms_stream(client: httpx.AsyncClient, prompt: str) -> str:
    body = {"model": "demo", "prompt": prompt, "max_tokens": LENGTH, "temperature": 0, "stream": True}
    answer = await client.post("/v3/completions", json=body)
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])


async def text(client: httpx.AsyncClient, prompt: str) -> str:
    answer = await client.post("/api/generate-one", json={"id": "a", "prompt": prompt, "maxLength": LENGTH})
    return answer.text


async def text_batch(client: httpx.AsyncClient, prompt: str) -> str:
    body = {"prompts": [{"id": 1, "prompt": prompt}], "maxLength": LENGTH}
    answer = await client.post("/api/generate-batch", json=body)
    return str(answer.json()[0]["data"])


async def tgi(client: httpx.AsyncClient, prompt: str) -> str:
    body = {"inputs": prompt, "parameters": {"max_new_tokens": LENGTH}}
    answer = await client.post("/generate", json=body)
    return str(answer.json()["generated_text"])


async def seeded(client: httpx.AsyncClient, prompt: str) -> str:
    body = {"prompt": prompt, "max_tokens": LENGTH, "temperature": 0.9, "top_p": 0.9, "seed": 1234}
    answer = await client.post("/v1/completions", json=body)
    return str(answer.json()["choices"][0]["text"])


async def chat(client: httpx.AsyncClient, prompt: str) -> str:
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": LENGTH, "temperature": 0, "stream": True}
    answer = await client.post("/v1/chat/completions", json=body, headers={"accept": "text/event-stream"})
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    return "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events)


async def lmi_chat(client: httpx.AsyncClient, prompt: str) -> str:
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": LENGTH, "temperature": 0}
    answer = await client.post("/invocations", json=body)
    return str(answer.json()["choices"][0]["message"]["content"])


RAW_DIALECTS: list[Ask] = [lmi, lmi_stream, completion, ovms_stream, text, text_batch, tgi]


def test_64_streams_of_mixed_dialects_give_the_text_of_a_lone_request(server: ServerProcess) -> None:
    async def scenario() -> None:
        limits = httpx.Limits(max_connections=80)
        async with httpx.AsyncClient(base_url=server.base_url, timeout=120, limits=limits) as client:
            alone = {prompt: await completion(client, prompt) for prompt in PROMPTS}
            alone_chat = {prompt: await chat(client, prompt) for prompt in PROMPTS}
            alone_seeded = {prompt: await seeded(client, prompt) for prompt in PROMPTS}
            asks = [(RAW_DIALECTS[i % len(RAW_DIALECTS)], PROMPTS[i % len(PROMPTS)]) for i in range(40)]
            asks += [(ask, prompt) for ask in (chat, lmi_chat, seeded) for prompt in PROMPTS]
            together = await asyncio.gather(*(ask(client, prompt) for ask, prompt in asks))
        alone_by: dict[Ask, dict[str, str]] = {chat: alone_chat, lmi_chat: alone_chat, seeded: alone_seeded}
        for (ask, prompt), answer in zip(asks, together, strict=True):
            assert answer == alone_by.get(ask, alone)[prompt], f"{ask.__name__}({prompt!r})"
        assert len(asks) == 64

    asyncio.run(scenario())


RUNNING, BLOCKS = "dragoman_requests_running", "dragoman_kv_blocks_used"
GAUGES = (RUNNING, BLOCKS, "dragoman_requests_waiting")


def wait_until_idle(server: ServerProcess) -> None:
    """Return once nothing runs or waits. Raises: AssertionError if that takes too long."""
    end_s = time.monotonic() + PATIENCE_S
    while busy := {name: value for name, value in server.metrics().items() if value and name in GAUGES}:
        assert time.monotonic() < end_s, f"the engine is not idle: {busy}"


@pytest.mark.parametrize(
    "name",
    [RUNNING, pytest.param(BLOCKS, marks=pytest.mark.needs("dragoman_kv_blocks_used"))],
    ids=["requests", "blocks"],
)
def test_a_streaming_client_that_is_killed_leaves_nothing_behind(server: ServerProcess, name: str) -> None:
    wait_until_idle(server)
    body = {"prompt": "Write a", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.base_url}/v1/completions", json=body, timeout=60) as answer:
        for received, _ in enumerate(answer.iter_lines()):
            if received == 8:
                assert server.metrics()[name] > 0, name
                break
    wait_until_idle(server)


def test_a_client_that_leaves_before_a_whole_answer_leaves_nothing_behind(server: ServerProcess) -> None:
    wait_until_idle(server)

    async def scenario() -> None:
        async with httpx.AsyncClient(base_url=server.base_url, timeout=60) as client:
            body = {"inputs": "Write a", "parameters": {"max_new_tokens": 1500, "ignore_eos_token": True}}
            request = asyncio.ensure_future(client.post("/invocations", json=body))
            while not (await asyncio.to_thread(server.metrics))[RUNNING]:
                assert not request.done(), request
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)

    asyncio.run(scenario())
    wait_until_idle(server)
