"""Which shape a conversation is answered in: the rule as a table, and that errors follow it too."""

from __future__ import annotations

from typing import Any

from dragoman.server.api import HttpCall, ModelProfile
from dragoman.server.apis.lmi.dialects import negotiate
from tests.dialects.openai_calls import ROUTES, chats, http_call, model, refusal
from tests.support.tables import Rows, table

BODY = {"messages": [{"role": "user", "content": "hi"}]}
SSE = {"accept": "text/event-stream"}
JSONLINES = {"accept": "application/jsonlines"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]

CURL = {"user-agent": "curl/8.5.0"}
OTHERS = (
    "python-requests/2.32", "aiohttp/3.11", "Go-http-client/1.1", "Java-http-client/21", "node", "k6/0.50",
    "PostmanRuntime/7", "Mozilla/5.0", "OpenAI/Python 3.52.0", "unknown/None; hf_hub/0.36.2", "LiteLLM/1.70",
    "libcurl-agent/1.0",
)  # fmt: skip

# (Route, option, whether the server is configured as LMI's containers are, headers, fields of the body, shape.)
CASES: list[tuple[str, str, bool, dict[str, str], dict[str, Any], str]] = [
    ("v1", "auto", False, {}, {}, "lmi"),
    ("v1", "auto", False, {"user-agent": ""}, {}, "lmi"),
    ("v1", "auto", False, CURL, {}, "lmi"),
    ("v1", "auto", False, CURL | {"accept": "*/*"}, {"temperature": 1, "top_logprobs": 1}, "lmi"),
    ("v1", "auto", False, CURL, {"tools": TOOLS, "stream_options": {}}, "lmi"),
    ("v1", "auto", False, CURL | SSE, {}, "openai"),
    ("v1", "auto", False, CURL | {"accept": "application/json, Text/Event-Stream;q=0.5"}, {}, "openai"),
    ("v1", "auto", False, CURL | {"authorization": "Bearer key"}, {}, "openai"),
    ("v1", "auto", False, CURL | {"authorization": " "}, {}, "lmi"),
    ("v1", "auto", False, CURL | {"api-key": "k"}, {}, "openai"),
    ("v1", "auto", False, CURL | {"x-api-key": "k"}, {}, "openai"),
    ("v1", "auto", False, {"api-key": ""}, {}, "lmi"),
    *(("v1", "auto", False, {"user-agent": agent}, {}, "openai") for agent in OTHERS),
    *(("v1", "auto", False, {"user-agent": agent, **JSONLINES}, {"tools": TOOLS}, "lmi") for agent in OTHERS),
    *(("v1", "auto", True, {"user-agent": agent, "authorization": "Bearer key"}, {}, "lmi") for agent in OTHERS),
    ("v1", "auto", True, SSE, {}, "openai"),
    ("v1", "openai", True, CURL, {}, "openai"),
    ("v1", "openai", False, CURL, {}, "openai"),
    ("v1", "openai", False, JSONLINES, {}, "lmi"),
    ("v1", "lmi", False, {**SSE, "user-agent": "OpenAI", "api-key": "k"}, {"tools": TOOLS}, "lmi"),
    ("v3", "auto", True, {}, {}, "openai"),
    ("v3", "lmi", False, JSONLINES, {}, "openai"),
    ("invocations", "auto", False, {"user-agent": "OpenAI", "authorization": "Bearer key"}, {"tools": TOOLS}, "lmi"),
    ("invocations", "openai", False, {}, {}, "lmi"),
    ("invocations", "auto", False, SSE, {}, "openai"),
]


def test_the_shape_follows_the_route_the_configuration_and_who_is_calling() -> None:
    with Rows() as rows:
        for case in CASES:
            route, chat_format, has_signs, headers, extra, shape = case
            http = http_call({**BODY, **extra}, **headers)
            served = model(chat_format=chat_format, has_lmi_signs=has_signs)
            with rows.row(*case):
                assert (ROUTES[route](served, http).name == "lmi") == (shape == "lmi")


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
    assert negotiate(ModelProfile(), HttpCall("POST", "/v1/chat/completions", b"")).name == "lmi"
