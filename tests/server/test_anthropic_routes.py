"""Anthropic's API behind the real server, asked by Anthropic's own client; only the service is scripted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from dragoman.errors import CapacityError, EngineFailed, Overloaded, Unavailable
from dragoman.server.app import ServerConfig
from tests.support.fake_service import Gate, Script
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table

TEXT = " Deep learning is fun. 🍊"
MESSAGES: Any = [{"role": "user", "content": "hi"}]
VERSION = {"anthropic-version": "2023-06-01"}


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    with running_server(dialects=real_dialects()) as server:
        yield server


@pytest.fixture
def claude(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    """Anthropic's client, without retries."""
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def ask(claude: anthropic.Anthropic, **more: Any) -> Any:
    return claude.messages.create(**{"model": "fake", "max_tokens": 64, "messages": MESSAGES, **more})


class TestClient:
    def test_it_reads_a_message(self, claude: anthropic.Anthropic) -> None:
        message = ask(claude)
        assert [block.text for block in message.content] == [TEXT]
        assert (message.stop_reason, message.role, message.model) == ("end_turn", "assistant", "fake")
        assert message._request_id == message.id.removeprefix("msg_")
        assert message.usage.output_tokens == 7

    def test_it_reads_a_stream(self, claude: anthropic.Anthropic) -> None:
        with claude.messages.stream(model="fake", max_tokens=64, messages=MESSAGES) as stream:
            pieces = list(stream.text_stream)
            final = stream.get_final_message()
        assert len(pieces) > 3
        assert "".join(pieces) == TEXT == final.content[0].text  # type: ignore[union-attr]
        assert final.usage.output_tokens == 7

    def test_it_reads_raw_events(self, claude: anthropic.Anthropic) -> None:
        kinds = [event.type for event in ask(claude, stream=True)]
        assert kinds[:2] == ["message_start", "content_block_start"]
        assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]

    def test_it_awaits_both(self, server: RunningServer) -> None:
        async def both() -> tuple[str, str]:
            async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
                message: Any = await client.messages.create(model="fake", max_tokens=64, messages=MESSAGES)
                async with client.messages.stream(model="fake", max_tokens=64, messages=MESSAGES) as stream:
                    return message.content[0].text, await stream.get_final_text()

        assert asyncio.run(both()) == (TEXT, TEXT)

    def test_it_counts_tokens(self, claude: anthropic.Anthropic) -> None:
        counted = claude.messages.count_tokens(model="fake", messages=MESSAGES, system="Be brief.")
        assert counted.input_tokens == len("system: Be brief.\nuser: hi")

    def test_it_is_told_what_had_no_effect(self, claude: anthropic.Anthropic) -> None:
        answer = claude.messages.with_raw_response.create(
            model="fake", max_tokens=8, messages=MESSAGES, metadata={"user_id": "u"}, extra_body={"fancy": 1}
        )
        assert answer.headers["x-dragoman-ignored"] == "metadata,fancy"


class TestErrors:
    @table(
        ("more", "kind", "words"),
        [
            ({"model": "nobody"}, anthropic.NotFoundError, "served: fake, nickname"),
            ({"extra_body": {"temperature": 3}}, anthropic.BadRequestError, "temperature must be"),
            (
                {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
                anthropic.BadRequestError,
                "web_search",
            ),
        ],
    )
    def test_they_have_the_clients_classes(
        self, claude: anthropic.Anthropic, more: Any, kind: type[anthropic.APIStatusError], words: str
    ) -> None:
        with pytest.raises(kind, match=words) as caught:
            ask(claude, **more)
        assert caught.value.request_id
        assert caught.value.type in ("not_found_error", "invalid_request_error")

    @table(
        ("error", "status", "kind", "words"),
        [
            (Overloaded("the queue is full"), 429, "rate_limit_error", "the queue is full"),
            (Unavailable("it loads"), 529, "overloaded_error", "it loads"),
            (EngineFailed("the step failed"), 500, "api_error", "the step failed"),
            (
                CapacityError("It has 90.", num_prompt_tokens=90, max_model_len=64),
                400,
                "invalid_request_error",
                "prompt is too long: 90 tokens > 64 maximum. It has 90.",
            ),
        ],
    )
    def test_failures_have_statuses_that_the_client_knows(
        self, server: RunningServer, claude: anthropic.Anthropic, error: Exception, status: int, kind: str, words: str
    ) -> None:
        server.service.script = Script(failures={0: error})
        with pytest.raises(anthropic.APIStatusError) as caught:
            ask(claude, stream=True)
        assert (caught.value.status_code, caught.value.type, caught.value.api_message) == (status, kind, words)

    def test_a_failure_in_a_stream_is_raised(self, server: RunningServer, claude: anthropic.Anthropic) -> None:
        gate = Gate()
        server.service.script = Script(gates={2: gate}, failures={2: EngineFailed("the step failed")})
        with ask(claude, stream=True) as stream:
            events = iter(stream)
            assert next(events).type == "message_start"
            gate.open()
            with pytest.raises(anthropic.APIStatusError, match="the step failed"):
                list(events)

    def test_closing_a_stream_aborts_the_generation(self, server: RunningServer, claude: anthropic.Anthropic) -> None:
        server.service.script = Script(gates={2: Gate()})
        with ask(claude, stream=True) as stream:
            next(iter(stream))
        server.service.journal.wait_for(lambda lines: any(line.startswith("abort") for line in lines))

    def test_keys_come_as_the_client_sends_them(self) -> None:
        with running_server(ServerConfig(api_keys=frozenset({"secret"})), dialects=real_dialects()) as server:
            for key, is_right in (("secret", True), ("wrong", False)):
                with anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0) as client:
                    if is_right:
                        assert ask(client).content
                        assert client.models.list().data
                    else:
                        with pytest.raises(anthropic.AuthenticationError):
                            ask(client)
                        with pytest.raises(anthropic.AuthenticationError) as caught:
                            client.models.list()
                        assert caught.value.type == "authentication_error"
            with anthropic.Anthropic(base_url=server.url, auth_token="secret", max_retries=0) as client:
                assert ask(client).content

    @table(
        ("method", "path"),
        [
            ("POST", "/v1/messages/batches"),
            ("GET", "/v1/messages/batches"),
            ("GET", "/v1/messages/batches/b/results"),
            ("POST", "/v1/messages/batches/b/cancel"),
            ("DELETE", "/v1/messages/batches/b"),
        ],
    )
    def test_batches_without_a_place_are_refused_by_name(self, client: httpx.Client, method: str, path: str) -> None:
        answer = client.request(method, path, json={"requests": []} if method == "POST" else None)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert "start the server with --store-dir DIRECTORY" in answer.json()["error"]["message"]

    def test_the_client_says_so_too(self, claude: anthropic.Anthropic) -> None:
        with pytest.raises(anthropic.BadRequestError, match="start the server with --store-dir"):
            claude.messages.batches.list()


class TestModels:
    def test_the_client_lists_them(self, claude: anthropic.Anthropic) -> None:
        page = claude.models.list()
        assert [(model.id, model.display_name, model.type) for model in page.data] == [
            ("fake", "fake", "model"),
            ("nickname", "nickname", "model"),
        ]
        assert (page.first_id, page.last_id, page.has_more) == ("fake", "nickname", False)
        assert page.data[0].created_at.timestamp() == 7
        assert claude.models.retrieve("nickname").id == "fake"
        assert [model.id for model in claude.models.list(limit=1)] == ["fake", "nickname"]  # page by page

    def test_pages_go_both_ways(self, client: httpx.Client) -> None:
        def page(query: str) -> Any:
            return client.get(f"/v1/models?{query}", headers=VERSION).json()

        first = page("limit=1")
        assert ([model["id"] for model in first["data"]], first["has_more"]) == (["fake"], True)
        assert [model["id"] for model in page("limit=1&after_id=fake")["data"]] == ["nickname"]
        assert [model["id"] for model in page("limit=1&before_id=nickname")["data"]] == ["fake"]
        last = page("after_id=nickname")
        assert last == {"data": [], "has_more": False, "first_id": None, "last_id": None}

    @table("query", ["limit=0", "limit=1001", "limit=x", "after_id=nobody", "before_id=nobody"])
    def test_pages_that_there_are_not_are_refused(self, client: httpx.Client, query: str) -> None:
        answer = client.get(f"/v1/models?{query}", headers=VERSION)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert query.partition("=")[0] in answer.json()["error"]["message"]

    def test_others_see_openais_list(self, client: httpx.Client) -> None:
        answer = client.get("/v1/models?limit=0")
        assert (answer.status_code, answer.json()["object"]) == (200, "list")

    @table(("path", "status"), [("/v1/models/nobody", 404), ("/v1/complete", 404), ("/v1/models", 405)])
    def test_errors_below_v1_are_told_to_each_client_in_its_words(
        self, client: httpx.Client, path: str, status: int
    ) -> None:
        method = "PUT" if status == 405 else "GET"
        ours = client.request(method, path, headers=VERSION)
        others = client.request(method, path)
        assert (ours.status_code, others.status_code) == (status, status)
        assert set(ours.json()) == {"type", "error", "request_id"}
        assert set(others.json()) == {"error"}


BIG_TOOL = {
    "name": "mcp__plugin_playwright_playwright__browser_take_screenshot_of_an_element_of_the_page",
    "description": "x" * 4000,
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {f"field_{i}": {"type": "string", "description": "y" * 200} for i in range(40)},
        "required": ["field_0"],
        "additionalProperties": False,
    },
}
MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
CLAUDE_CODE: dict[str, Any] = {
    "model": "fake",
    "max_tokens": 32000,
    "stream": True,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch=00000;"},
        {"type": "text", "text": "You are Claude Code.", **MARK},
        {"type": "text", "text": "\nYou are an interactive agent.", **MARK},
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nToday.\n</system-reminder>"},
                {"type": "text", "text": "hi", **MARK},
            ],
        }
    ],
    "tools": [BIG_TOOL, {**BIG_TOOL, "name": "Bash", "eager_input_streaming": True}],
    "metadata": {"user_id": "user_0_account__session_0"},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "temperature": 1,
}
CLAUDE_CODE_HEADERS = {
    **VERSION,
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "anthropic-dangerous-direct-browser-access": "true",
    "authorization": "Bearer none",
    "user-agent": "claude-cli/2.1.0 (external, cli)",
    "x-app": "cli",
    "x-stainless-lang": "js",
    "x-stainless-timeout": "600",
}


class TestClaudeCode:
    def test_what_it_sends_first_is_answered(self, client: httpx.Client) -> None:
        assert client.head("/").status_code == 200
        quota = {"model": "fake", "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]}
        answer = client.post("/v1/messages?beta=true", json=quota, headers=CLAUDE_CODE_HEADERS)
        assert (answer.status_code, answer.json()["stop_reason"]) == (200, "max_tokens")

    def test_its_turns_are_answered(self, server: RunningServer, client: httpx.Client) -> None:
        answer = client.post("/v1/messages?beta=true", json=CLAUDE_CODE, headers=CLAUDE_CODE_HEADERS)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
        names = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
        assert names[:3] == ["message_start", "ping", "content_block_start"]
        assert names[-1] == "message_stop"
        request = server.service.requests[-1]
        messages: Any = request.prompt.messages  # type: ignore[union-attr]
        assert messages[0]["content"] == "You are Claude Code.\n\nYou are an interactive agent."
        assert [tool["function"]["name"] for tool in request.prompt.tools][1] == "Bash"  # type: ignore[union-attr]
        assert request.on_overflow == "clip"
        named = answer.headers["x-dragoman-ignored"].split(",")
        assert set(named) == {
            "metadata", "context_management", "cache_control", "tools.eager_input_streaming", "system[0]",
        }  # fmt: skip

    def test_it_counts_before_it_asks(self, client: httpx.Client) -> None:
        body = {name: CLAUDE_CODE[name] for name in ("model", "messages", "tools", "system", "thinking")}
        answer = client.post("/v1/messages/count_tokens?beta=true", json=body, headers=CLAUDE_CODE_HEADERS)
        assert answer.status_code == 200
        assert answer.json()["input_tokens"] > 10
        wrong = client.post("/v1/messages/count_tokens", json={**body, "messages": []}, headers=CLAUDE_CODE_HEADERS)
        assert (wrong.status_code, wrong.json()["error"]["type"]) == (400, "invalid_request_error")

    def test_a_strict_server_names_what_it_does_not_do(self, client: httpx.Client) -> None:
        headers = {**CLAUDE_CODE_HEADERS, "x-dragoman-strict": "1"}
        answer = client.post("/v1/messages", content=json.dumps(CLAUDE_CODE), headers=headers)
        assert answer.status_code == 400
        assert "context_management" in answer.json()["error"]["message"]
