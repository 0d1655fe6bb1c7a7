"""Bounds of reasoning with the clients that people have, the real server and the demo model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.support.any_engine import write_weightless
from tests.support.server_process import ServerProcess

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
THOUGHT = "I should give a short and friendly answer"  # eight tokens; the ninth is a full stop
PARIS = "The capital of France is Paris."


@pytest.fixture(scope="module")
def bounded(server_of: Callable[..., ServerProcess]) -> ServerProcess:
    """It thinks unless a request says otherwise, in at most eight tokens; and guesses, as by default."""
    options = ("--chat-template-kwargs", '{"enable_thinking": true}', "--reasoning-budget", "8")
    return server_of("--dtype", "f32", *options)


@pytest.fixture(scope="module")
def client(bounded: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{bounded.base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, **more: Any) -> list[tuple[str | None, str | None]]:
    """Reasoning and content of each choice."""
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 80, **more}
    answer = client.chat.completions.create(model="demo", messages=QUESTION, **options)
    return [(getattr(one.message, "reasoning", None), one.message.content) for one in answer.choices]


def test_the_operator_bounds_what_requests_leave_open(client: openai.OpenAI) -> None:
    assert ask(client) == [(THOUGHT, PARIS)]
    assert ask(client, n=2) == [(THOUGHT, PARIS)] * 2
    assert ask(client, extra_body={"reasoning": {"max_tokens": 100}}) == [(f"{THOUGHT}.", PARIS)]
    assert ask(client, extra_body={"thinking_token_budget": -1}) == [(f"{THOUGHT}.", PARIS)]
    assert ask(client, extra_body={"reasoning_budget": 0}) == [(None, PARIS)]
    assert ask(client, extra_body={"chat_template_kwargs": {"enable_thinking": False}}) == [(None, PARIS)]


@pytest.mark.parametrize("num_guesses", [0, 3, 32])
def test_guesses_change_nothing(client: openai.OpenAI, num_guesses: int) -> None:
    assert ask(client, extra_body={"num_assistant_tokens": num_guesses}) == [(THOUGHT, PARIS)]


def test_the_answer_has_the_form_that_was_asked_for(client: openai.OpenAI) -> None:
    [(thought, answer)] = ask(client, extra_body={"guided_choice": ["Paris", "Rome"]})
    assert (thought, answer) in ((THOUGHT, "Paris"), (THOUGHT, "Rome"))


def test_anthropics_client_gets_a_block_of_thinking_that_is_as_long(bounded: ServerProcess) -> None:
    with anthropic.Anthropic(base_url=bounded.base_url, api_key="none", max_retries=0) as client:
        message = client.messages.create(model="demo", max_tokens=80, messages=QUESTION, extra_body={"temperature": 0})
        told = client.messages.create(
            model="demo", max_tokens=1100, messages=QUESTION, thinking={"type": "enabled", "budget_tokens": 1024}
        )
    assert [getattr(block, "thinking", None) or getattr(block, "text", None) for block in message.content] == [
        THOUGHT,
        PARIS,
    ]
    assert told.content[0].type == "thinking"
    assert told.content[0].thinking != THOUGHT


def test_who_decided_the_budget_is_explained(bounded: ServerProcess) -> None:
    told = []
    for more in ({}, {"thinking_token_budget": 3}, {"chat_template_kwargs": {"thinking_budget": 4}}):
        call = {"path": "/v1/chat/completions", "body": {"messages": QUESTION, **more}}
        answer = httpx.post(f"{bounded.base_url}/explain", json=call, timeout=60).json()
        told += [one for one in answer["parameters"] if one["name"] == "thinking_token_budget"]
    assert [(one["value"], one["source"], one["names"]) for one in told] == [
        (8, "server option", ["reasoning_budget"]),
        (3, "request", ["thinking_token_budget"]),
        (4, "request", ["chat_template_kwargs"]),
    ]


@pytest.mark.full("tests/engine/remote tells what is sent")
def test_a_server_in_front_passes_the_budget_on(
    server_of: Callable[..., ServerProcess], bounded: ServerProcess, tmp_path: Path
) -> None:
    asks = ("--engine", "remote", "--upstream", bounded.base_url)
    front = server_of(str(write_weightless(tmp_path)), "--name", "demo", *asks)
    thinks = {"chat_template_kwargs": {"enable_thinking": True}}
    with openai.OpenAI(base_url=f"{front.base_url}/v1", api_key="none", max_retries=0) as client:
        assert ask(client, extra_body={**thinks, "thinking_token_budget": 8}) == [(THOUGHT, PARIS)]
        assert ask(client, extra_body=thinks) == [(f"{THOUGHT}.", PARIS)]
