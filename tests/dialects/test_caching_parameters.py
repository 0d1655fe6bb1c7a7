"""What clients of OpenAI's routes may say of cached prompts, what becomes of it, and what is named as without effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dragoman.server.api import Call, Dialect
from tests.dialects.openai_calls import chats, completions, http_call, refusal
from tests.dialects.responses_calls import responses
from tests.support.tables import table

DIALECTS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (completions, {"prompt": "Say it"}),
    (chats, {"messages": [{"role": "user", "content": "Say it"}]}),
    (responses, {"input": "Say it"}),
]


def calls(caching: dict[str, Any], **options: Any) -> list[Call]:
    """The call with these parameters on each route that shares them."""
    made = []
    for dialect, body in DIALECTS:
        made.append(dialect(**options).open(http_call({**body, **caching}, authorization="Bearer key")).parse())
    return made


@table(
    ("caching", "keep_s"),
    [
        ({}, None),
        ({"prompt_cache_retention": "24h"}, 86400),
        ({"prompt_cache_retention": "in_memory"}, 0),
        ({"prompt_cache_retention": "in-memory"}, 0),
        ({"prompt_cache_options": {"ttl": "30m"}}, 1800),
        ({"prompt_cache_options": {"ttl": "12h", "mode": "implicit"}}, 43200),
        ({"prompt_cache_options": {"ttl": "12h"}, "prompt_cache_retention": "24h"}, 86400),
        ({"prompt_cache_options": {"ttl": "12h"}, "prompt_cache_retention": "in_memory"}, 0),
        ({"prompt_cache_retention": None, "prompt_cache_options": None}, None),
    ],
)
def test_how_long_a_prompt_is_kept(caching: dict[str, Any], keep_s: float | None) -> None:
    for call in calls(caching, keeps_prompts=True):
        assert call.requests[0].cache_keep_s == keep_s
        assert call.ignored == ()


@table(
    ("caching", "ignored"),
    [
        ({"prompt_cache_retention": "24h"}, ("prompt_cache_retention",)),
        ({"prompt_cache_retention": "in_memory"}, ()),
        ({"prompt_cache_options": {"ttl": "30m"}}, ("prompt_cache_options.ttl",)),
        ({"prompt_cache_options": {"mode": "explicit"}}, ("prompt_cache_options.mode",)),
        ({"prompt_cache_options": {"mode": "implicit"}}, ()),
    ],
)
def test_what_cannot_be_kept_is_named(caching: dict[str, Any], ignored: tuple[str, ...]) -> None:
    for call in calls(caching):
        assert not call.requests[0].cache_keep_s
        assert call.ignored == ignored
        assert all(call.idle.values())


def test_a_key_chooses_one_of_several_engines_and_is_named_where_there_is_one() -> None:
    for call in calls({"prompt_cache_key": "a conversation"}, has_cache_keys=True):
        assert (call.requests[0].cache_key, call.ignored) == ("a conversation", ())
    for call in calls({"prompt_cache_key": "a conversation"}):
        assert call.ignored == ("prompt_cache_key",)


@table(
    ("caching", "message"),
    [
        (
            {"prompt_cache_retention": "1h"},
            'prompt_cache_retention must be in_memory, in-memory or 24h, got "1h"',
        ),
        ({"prompt_cache_options": {"ttl": "5m"}}, 'prompt_cache_options.ttl must be 30m or 12h, got "5m"'),
        (
            {"prompt_cache_options": {"mode": "none"}},
            'prompt_cache_options.mode must be implicit or explicit, got "none"',
        ),
    ],
)
def test_another_word_is_refused(caching: dict[str, Any], message: str) -> None:
    for dialect, body in DIALECTS:
        made: Dialect = dialect()
        assert refusal(made, http_call({**body, **caching}, authorization="Bearer key")).message == message
