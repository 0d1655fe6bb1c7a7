"""Translates messages for one model.

Does: turn a body into one GenerationRequest, or into the prompt whose tokens are counted. Does not: encode.
Built by the composition root, one per served model; called on the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from dragoman.errors import ServerError
from dragoman.server.api import Call, HttpCall, PureDialect, Reply
from dragoman.server.apis.anthropic.conversation import conversation, refuse_unoffered_blocks
from dragoman.server.apis.anthropic.encoder import MessageFacts, MessagesEncoder
from dragoman.server.apis.anthropic.errors import AnthropicErrors
from dragoman.server.apis.anthropic.parameters import (
    ANTHROPIC,
    TTLS,
    budget_of,
    cache_ttl,
    check_words,
    named_without_effect,
    output_grammar,
    reasons_of,
    refuse_unoffered,
    thinking_kwargs,
)
from dragoman.server.apis.anthropic.schema import MessagesBody, PromptBody
from dragoman.server.apis.anthropic.tools import has_parallel_calls, refuse_built_in, tool_use
from dragoman.server.apis.openai_wire.chat.messages import ToolUse
from dragoman.server.apis.openai_wire.common import OpenAiOptions
from dragoman.server.apis.openai_wire.fields import check_bounds, decode_object, read_struct
from dragoman.server.apis.openai_wire.sampling import Reading, SharedBody, shared_request
from dragoman.types import ChatPrompt, GenerationRequest, Limits

BodyT = TypeVar("BodyT", bound=PromptBody)


class PromptOfBody(NamedTuple):
    """The prompt and tools for the model. `ignored`: names of what it does not get."""

    prompt: ChatPrompt
    tools: ToolUse
    ignored: tuple[str, ...]


def read_body(http: HttpCall, kind: type[BodyT]) -> tuple[dict[str, Any], BodyT]:
    """The body as sent, and typed. Raises: InvalidRequest, UnsupportedFeature."""
    raw = decode_object(http, ANTHROPIC)
    refuse_unoffered(raw)
    refuse_built_in(raw)
    refuse_unoffered_blocks(raw)
    body = read_struct(raw, kind, ANTHROPIC)
    check_bounds(raw, body, ANTHROPIC)
    return raw, body


def prompt_of(
    raw: Mapping[str, Any], body: PromptBody, limits: Limits, max_tokens: int | None = None, betas: str = ""
) -> PromptOfBody:
    """The prompt and tools that a body holds. Raises: InvalidRequest."""
    kwargs = thinking_kwargs(body, max_tokens, betas)
    said, tools = conversation(body, limits), tool_use(body, raw)
    return PromptOfBody(ChatPrompt(said.messages, tools.tools, said.continues, kwargs), tools, said.ignored)


class MessagesDialect(PureDialect):
    """The Messages API's words for one model."""

    def __init__(self, options: OpenAiOptions) -> None:
        self._options = options
        self._errors = AnthropicErrors()

    def parse(self, http: HttpCall) -> Call:
        """One request. Raises: InvalidRequest."""
        raw, body = read_body(http, MessagesBody)
        check_words(body, self._options.limits)
        assert body.max_tokens is not None  # checked with the words
        shown = prompt_of(raw, body, self._options.limits, body.max_tokens, http.headers.get("anthropic-beta", ""))
        ttl, keeps = cache_ttl(body), self._options.keeps_prompts
        request = self._request(http, body, shown)
        if ttl is not None and keeps:
            request = msgspec.structs.replace(request, cache_keep_s=TTLS[ttl])
        is_greedy = request.sampling.is_greedy
        ignored = (
            *named_without_effect(raw, body, is_greedy=is_greedy, keeps_prompts=keeps, thinks=self._options.thinks),
            *shown.ignored,
        )
        facts = MessageFacts(
            request_id=http.request_id,
            model=self._options.names.answering(ANTHROPIC, body.model),
            max_tokens=body.max_tokens,
            shows_thinking=body.thinking is None or body.thinking.display != "omitted",
            has_parallel_calls=has_parallel_calls(body),
            cache_ttl=ttl if keeps else None,
        )
        return Call(
            (request,),
            MessagesEncoder(facts),
            stream=bool(body.stream),
            ignored=ignored,
            reasons=reasons_of(ignored),
        )

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a call that failed."""
        return self._errors.error_reply(error, http)

    def _request(self, http: HttpCall, body: MessagesBody, shown: PromptOfBody) -> GenerationRequest:
        shared = SharedBody(
            model=body.model,
            stream=body.stream,
            max_tokens=body.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            stop=body.stop_sequences,
            thinking_token_budget=budget_of(body),
        )
        reading = Reading(ANTHROPIC, self._options)
        return shared_request(
            shared,
            reading,
            request_id=http.request_id,
            prompt=shown.prompt,
            logprobs=None,
            grammar=output_grammar(body),
            parse_tool_calls=shown.tools.is_parsed,
            parse_reasoning=True,
            tool_choice=shown.tools.choice,
            called_tool=shown.tools.called_tool,
            passed_over=shown.tools.passed_over,
            parallel_tool_calls=has_parallel_calls(body),
        )
