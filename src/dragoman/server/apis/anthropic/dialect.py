"""Turns a body of messages into a GenerationRequest, or a prompt to count. For one served model; on the event loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from dragoman.server.api import Call, HttpCall, ModelProfile, PureDialect
from dragoman.server.apis.anthropic.conversation import conversation, refuse_unoffered_blocks
from dragoman.server.apis.anthropic.encoder import MessagesEncoder
from dragoman.server.apis.anthropic.errors import ERRORS
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
from dragoman.server.apis.openai_wire.common import Reading, name_in_answer
from dragoman.server.apis.openai_wire.conversation import ToolUse
from dragoman.server.apis.openai_wire.fields import check_bounds, decode_object, read_struct
from dragoman.server.apis.openai_wire.sampling import shared_body, shared_request
from dragoman.types import ChatPrompt, GenerationRequest, Limits

BodyT = TypeVar("BodyT", bound=PromptBody)


class PromptOfBody(NamedTuple):
    """The prompt and tools for the model. `ignored`: names of parts that it does not get."""

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
    """Raises: InvalidRequest."""
    kwargs = thinking_kwargs(body, max_tokens, betas)
    messages, ignored = conversation(body, limits)
    tools, continues = tool_use(body, raw), messages[-1]["role"] == "assistant"
    return PromptOfBody(ChatPrompt(messages, tools.tools, continues, kwargs), tools, ignored)


class MessagesDialect(PureDialect):
    errors = ERRORS

    def __init__(self, model: ModelProfile) -> None:
        self._reading = Reading(ANTHROPIC, model)

    def parse(self, http: HttpCall) -> Call:
        model = self._reading.model
        raw, body = read_body(http, MessagesBody)
        check_words(body, model.limits)
        shown = prompt_of(raw, body, model.limits, body.max_tokens, http.headers.get("anthropic-beta", ""))
        ttl = cache_ttl(body)
        keep_s = TTLS[ttl] if ttl is not None and model.keeps_prompts else None
        request = self._request(http, body, shown, keep_s)
        is_greedy = request.sampling.is_greedy
        ignored = (
            *named_without_effect(
                raw, body, is_greedy=is_greedy, keeps_prompts=model.keeps_prompts, thinks=model.thinks
            ),
            *shown.ignored,
        )
        return Call(
            (request,),
            MessagesEncoder(request, name_in_answer(self._reading, body.model), body),
            stream=bool(body.stream),
            ignored=ignored,
            reasons=reasons_of(ignored),
        )

    def _request(
        self, http: HttpCall, body: MessagesBody, shown: PromptOfBody, keep_s: float | None
    ) -> GenerationRequest:
        request = shared_request(
            shared_body(body, stop=body.stop_sequences, thinking_token_budget=budget_of(body)),
            self._reading,
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
        return msgspec.structs.replace(request, cache_keep_s=keep_s)
