"""What not every engine may have and no other suite asks for: it has its effect, or is refused with its name."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.support.server_process import ServerProcess

MESSAGES = [{"role": "user", "content": "What is 2+2?"}]
ASKED = {"model": "demo", "messages": MESSAGES, "max_tokens": 200, "temperature": 0}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [3, 4]}}, "required": ["a"], "additionalProperties": False}


def ask(server: ServerProcess, path: str, **more: Any) -> dict[str, Any]:
    """The answer of a chat."""
    answer = httpx.post(server.base_url + path, json={**ASKED, **more}, headers={"api-key": "x"}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert "x-dragoman-ignored" not in answer.headers, answer.headers["x-dragoman-ignored"]
    told: dict[str, Any] = answer.json()
    return told


def test_a_call_may_have_a_priority(server: ServerProcess) -> None:
    assert ask(server, "/v1/chat/completions", priority=3)["usage"]["completion_tokens"] > 0


def test_a_salt_keeps_prompts_apart(server: ServerProcess) -> None:
    told = [{"role": "user", "content": "Remember all of this. " * 40}]
    cached = []
    for salt in ("one", "one", "two"):
        usage = ask(server, "/v1/chat/completions", messages=told, max_tokens=2, cache_salt=salt)["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"] > 100)
    assert cached == [False, True, False]


@pytest.mark.needs("grammar behind reasoning")
def test_an_answer_has_its_form_behind_reasoning(server: ServerProcess) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    thinking = {"enable_thinking": True}
    told = ask(server, "/v1/chat/completions", response_format=form, chat_template_kwargs=thinking)
    message = told["choices"][0]["message"]
    assert json.loads(message["content"])["a"] in (3, 4)
    assert message["reasoning_content"]
