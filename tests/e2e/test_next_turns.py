"""Chats of several turns over HTTP: what was asked and answered before is not computed again, as `usage` tells."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from dragoman.models import ModelOptions
from dragoman.models.profile import kernel_profile
from tests.support.server_process import ServerProcess


@pytest.mark.varies("answers of earlier turns are found where the library of kernels attends")
def test_the_next_turn_computes_what_is_new(server: ServerProcess) -> None:
    messages: list[Any] = [{"role": "user", "content": "Tell me a story about a small dog and a big river."}]
    finds_answers = kernel_profile(ModelOptions("f32")).attends
    num_known = 0
    for _ in range(3):
        body = {"model": "demo", "messages": messages, "max_tokens": 60, "temperature": 0}
        answer = httpx.post(f"{server.base_url}/v1/chat/completions", json=body, timeout=60).raise_for_status()
        usage, message = answer.json()["usage"], answer.json()["choices"][0]["message"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == num_known // 32 * 32
        num_known = usage["total_tokens"] - 1 if finds_answers else usage["prompt_tokens"]  # the last was not computed
        messages += [message, {"role": "user", "content": "And then?"}]
