"""Which shape a conversation on `/v1/chat/completions` has: OpenAI's and LMI's documents both describe that route.

Does: look for what only one kind of client sends. Does not: parse. Called by the chat dialect, on the event loop.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dragoman.server.api import HttpCall
from dragoman.server.apis.openai_wire.chat.dialect import ChatOptions
from dragoman.server.apis.openai_wire.chat.encoder import ChatShape
from dragoman.server.http.framing import JSONLINES_MEDIA_TYPE, SSE_MEDIA_TYPE

OPENAI_ONLY_FIELDS = (
    "stream_options", "tools", "functions", "response_format", "max_completion_tokens", "store", "metadata",
)  # fmt: skip
OPENAI_HEADERS = frozenset(
    ["x-stainless-lang", "authorization", "api-key", "x-api-key", "openai-organization", "openai-beta"]
)
OPENAI_USER_AGENTS = (
    "openai", "hf_hub", "litellm", "langchain", "llama-index", "instructor", "guidellm", "ai-sdk", "ai/",
)  # fmt: skip
_OPENAI_AGENT = re.compile("|".join(map(re.escape, OPENAI_USER_AGENTS)))


def negotiate_shape(options: ChatOptions, http: HttpCall, body: Mapping[str, Any]) -> ChatShape:
    """The shape of the answer to this call, errors included; `body` is the decoded body, {} if it is unusable.

    `/v3` always speaks OpenAI's. `/invocations` speaks LMI's unless server-sent events are asked for. `/v1` is documented
    by both, so in `auto` anything only an OpenAI client sends decides, and LMI's shape is what remains.
    """
    if JSONLINES_MEDIA_TYPE in http.accept:
        return "lmi"
    if options.chat_format != "auto":
        return options.chat_format
    return "openai" if _is_openai_client(http) or _has_openai_field(body) else "lmi"


def _is_openai_client(http: HttpCall) -> bool:
    headers = http.headers
    return (
        SSE_MEDIA_TYPE in http.accept
        or any(headers[name].strip() for name in OPENAI_HEADERS & headers.keys())
        or _OPENAI_AGENT.search(headers.get("user-agent", "").lower()) is not None
    )


def _has_openai_field(body: Mapping[str, Any]) -> bool:
    return any(body.get(name) is not None for name in OPENAI_ONLY_FIELDS)
