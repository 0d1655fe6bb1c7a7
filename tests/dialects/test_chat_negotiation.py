"""Which shape a conversation is answered in: the rule as a table, and that errors follow it too."""

from __future__ import annotations

from typing import Any

from dragoman.server.api import HttpCall
from dragoman.server.apis.openai.negotiate import negotiate_shape
from dragoman.server.apis.openai_wire.chat.dialect import ChatOptions
from dragoman.server.apis.openai_wire.fields import peek_object
from tests.dialects.openai_calls import ROUTES, chats, http_call, refusal
from tests.support.tables import table

BODY = {"messages": [{"role": "user", "content": "hi"}]}
SSE = {"accept": "text/event-stream"}
JSONLINES = {"accept": "application/jsonlines"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]

CASES: list[tuple[str, str, dict[str, str], dict[str, Any], str]] = [
    ("v1", "auto", {}, {}, "lmi"),
    ("v1", "auto", {"accept": "*/*"}, {}, "lmi"),
    ("v1", "auto", {"accept": "application/json"}, {}, "lmi"),
    ("v1", "auto", SSE, {}, "openai"),
    ("v1", "auto", {"accept": "application/json, Text/Event-Stream;q=0.5"}, {}, "openai"),
    ("v1", "auto", {"x-stainless-lang": "python"}, {}, "openai"),
    ("v1", "auto", {"authorization": "Bearer key"}, {}, "openai"),
    ("v1", "auto", {"authorization": "AWS4-HMAC-SHA256 Credential=x"}, {}, "openai"),
    ("v1", "auto", {"authorization": "Basic dTpw"}, {}, "openai"),
    ("v1", "auto", {"authorization": " "}, {}, "lmi"),
    ("v1", "auto", {"api-key": "k"}, {}, "openai"),
    ("v1", "auto", {"api-key": ""}, {}, "lmi"),
    ("v1", "auto", {"x-api-key": "k"}, {}, "openai"),
    ("v1", "auto", {"openai-organization": "o"}, {}, "openai"),
    ("v1", "auto", {"openai-beta": "assistants=v2"}, {}, "openai"),
    ("v1", "auto", {"user-agent": "ai/6.0.1 ai-sdk/openai-compatible/2.0"}, {}, "openai"),
    ("v1", "auto", {"user-agent": "ai-sdk/provider"}, {}, "openai"),
    ("v1", "auto", {"user-agent": "LiteLLM/1.70"}, {}, "openai"),
    ("v1", "auto", {"user-agent": "llama-index/0.12"}, {}, "openai"),
    ("v1", "auto", {"user-agent": "instructor/1.7"}, {}, "openai"),
    ("v1", "auto", {"user-agent": "guidellm/0.3"}, {}, "openai"),
    ("v1", "auto", {"user-agent": "python-requests/2.32"}, {}, "lmi"),
    ("v1", "auto", {"user-agent": "aiohttp/3.11"}, {}, "lmi"),
    ("v1", "auto", {}, {"functions": [{"name": "f"}]}, "openai"),
    ("v1", "lmi", {"api-key": "k", "openai-beta": "x"}, {}, "lmi"),
    ("v1", "auto", {"user-agent": "OpenAI/Python 3.52.0"}, {}, "openai"),
    ("v1", "auto", {"user-agent": "unknown/None; hf_hub/0.36.2; python/3.11"}, {}, "openai"),
    ("v1", "auto", {"user-agent": "litellm/1.2"}, {}, "openai"),
    ("v1", "auto", {"user-agent": "langchain/0.3"}, {}, "openai"),
    ("v1", "auto", {"user-agent": "curl/8.1"}, {}, "lmi"),
    ("v1", "auto", {}, {"stream_options": {}}, "openai"),
    ("v1", "auto", {}, {"tools": TOOLS}, "openai"),
    ("v1", "auto", {}, {"response_format": {"type": "text"}}, "openai"),
    ("v1", "auto", {}, {"max_completion_tokens": 5}, "openai"),
    ("v1", "auto", {}, {"store": False}, "openai"),
    ("v1", "auto", {}, {"metadata": {}}, "openai"),
    ("v1", "auto", {}, {"tools": None, "metadata": None}, "lmi"),
    ("v1", "auto", {}, {"temperature": 1, "user": "x", "top_logprobs": 1}, "lmi"),
    ("v1", "auto", {**JSONLINES, "authorization": "Bearer key"}, {"tools": TOOLS}, "lmi"),
    ("v1", "openai", {}, {}, "openai"),
    ("v1", "openai", JSONLINES, {}, "lmi"),
    ("v1", "lmi", {}, {}, "lmi"),
    ("v1", "lmi", {**SSE, "user-agent": "OpenAI"}, {"tools": TOOLS}, "lmi"),
    ("v3", "auto", {}, {}, "openai"),
    ("v3", "lmi", JSONLINES, {}, "openai"),
    ("invocations", "auto", {}, {}, "lmi"),
    ("invocations", "openai", {"user-agent": "OpenAI", "authorization": "Bearer key"}, {"tools": TOOLS}, "lmi"),
    ("invocations", "auto", SSE, {}, "openai"),
]


@table(("route", "chat_format", "headers", "extra", "shape"), CASES)
def test_the_shape_follows_the_route_the_option_and_who_is_calling(
    route: Any, chat_format: Any, headers: dict[str, str], extra: dict[str, Any], shape: str
) -> None:
    http = http_call({**BODY, **extra}, **headers)
    assert ROUTES[route].negotiate(ChatOptions(ROUTES[route], chat_format), http, peek_object(http)) == shape


@table(
    ("route", "headers", "status", "keys"),
    [
        ("v1", {}, 424, {"error", "code"}),
        ("v1", SSE, 400, {"error"}),
        ("v3", {}, 400, {"error"}),
        ("invocations", {}, 424, {"error", "code"}),
        ("invocations", SSE, 400, {"error"}),
    ],
)
def test_errors_are_in_the_shape_the_answer_would_have_had(
    route: Any, headers: dict[str, str], status: int, keys: set[str]
) -> None:
    answer = refusal(chats(route), http_call({**BODY, "model": "m", "temperature": 5}, **headers))
    assert (answer.status, set(answer.body)) == (status, keys)


def test_a_body_that_cannot_be_read_is_refused_in_the_shape_of_its_headers() -> None:
    plain, sse = http_call(b"{"), http_call(b"{", **SSE)
    assert refusal(chats(), plain).status == 424
    assert refusal(chats(), sse).status == 400


def test_a_call_without_headers_is_lmis() -> None:
    assert negotiate_shape(ChatOptions(ROUTES["v1"]), HttpCall("POST", "/v1/chat/completions", b""), {}) == "lmi"
