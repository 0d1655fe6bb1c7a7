"""Turns a conversation in OpenAI's shape or LMI's into one GenerationRequest. One per model and route; on the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dragoman.errors import ServerError
from dragoman.server.api import Call, HttpCall, ModelProfile, PureDialect, Reply
from dragoman.server.apis.openai_wire.chat.encoder import ChatEncoder
from dragoman.server.apis.openai_wire.chat.messages import check_restricted, check_sizes, conversation, tool_use
from dragoman.server.apis.openai_wire.chat.schema import ChatBody
from dragoman.server.apis.openai_wire.common import Reading, effort_switches
from dragoman.server.apis.openai_wire.fields import decode_object, read_struct
from dragoman.server.apis.openai_wire.profile import Profile
from dragoman.server.apis.openai_wire.sampling import (
    check_shared,
    logprob_count,
    reasons_of,
    shared_request,
    tells_progress,
    without_effect,
)
from dragoman.server.apis.openai_wire.thinking import ReasoningBody

LMI_STRICT_MAX_TOKENS = 30  # what LMI v0.31 generates for a conversation without max_tokens


ChatRoute = Callable[[ModelProfile, HttpCall], Profile]
"""(model, call) -> the profile that answers."""


class ChatDialect(PureDialect):
    """Translates conversations. `clock` returns Unix time in seconds.

    The setting `lmi_strict` reproduces LMI v0.31 to the letter where it errs.
    """

    def __init__(self, model: ModelProfile, route: ChatRoute, clock: Callable[[], float] = time.time) -> None:
        self._model = model
        self._route = route
        self._clock = clock

    def parse(self, http: HttpCall) -> Call:
        model = self._model
        profile = self._route(model, http)
        is_strict = profile.name == "lmi" and bool(model.settings.get("lmi_strict"))
        raw = decode_object(http, profile)
        reading = Reading(profile, model)
        body = read_struct(raw, ChatBody, profile)
        check_shared(raw, body, reading)
        if body.max_completion_tokens is not None:
            body.max_tokens = body.max_completion_tokens
        top_logprobs = _top_logprobs(body, reading, needs_top=is_strict)
        check_sizes(body, model.limits, profile)
        tools = tool_use(body, raw, profile)
        prompt = conversation(body, tools, profile, **_effort(body))
        check_restricted(prompt.messages, profile)
        request = shared_request(
            body,
            reading,
            request_id=http.request_id,
            prompt=prompt,
            logprobs=top_logprobs,
            max_tokens=LMI_STRICT_MAX_TOKENS if is_strict else None,
            parse_tool_calls=tools.is_parsed,
            parse_reasoning=True,
            tool_choice=tools.choice,
            called_tool=tools.called_tool,
            passed_over=tools.passed_over,
            parallel_tool_calls=body.parallel_tool_calls is not False and not body.functions,
        )
        ignored = without_effect(raw, body, request, reading)
        if top_logprobs is None:
            ignored += [name for name in ("top_logprobs",) if raw.get(name)]
        encoder = ChatEncoder(body, request, reading, http, self._clock, has_lmi_slips=is_strict)
        if body.echo and not encoder.echoed:
            ignored.append("echo")
        return Call(
            (request,),
            encoder,
            stream=bool(body.stream),
            ignored=tuple(ignored),
            reasons=reasons_of(ignored, body, reading),
            wants_progress=tells_progress(body, reading),
        )

    def ignores_unknown_model(self, http: HttpCall) -> bool:
        return self._route(self._model, http).ignores_model

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        return self._route(self._model, http).errors.reply(error)


def _top_logprobs(body: ChatBody, reading: Reading, *, needs_top: bool) -> int | None:
    """Number of candidates to show per token; None = no logprobs. `needs_top`: `logprobs: true` alone does nothing."""
    if body.n_probs is not None:
        logprob_count("n_probs", body.n_probs, reading)
        if body.n_probs and body.logprobs is None and body.top_logprobs is None:
            body.logprobs, body.top_logprobs = True, body.n_probs
    if body.top_logprobs is not None:
        body.top_logprobs = logprob_count("top_logprobs", body.top_logprobs, reading)
    if body.logprobs:
        return None if needs_top and not body.top_logprobs else body.top_logprobs or 0
    if body.top_logprobs and reading.profile.name != "lmi":
        message = f"top_logprobs needs logprobs: true, got top_logprobs {body.top_logprobs}"
        raise reading.profile.fault("top_logprobs", "without_logprobs", message)
    return None


def _effort(body: ChatBody) -> dict[str, Any]:
    reasoning = body.reasoning or ReasoningBody()
    kwargs = effort_switches(body.reasoning_effort or reasoning.effort)
    if reasoning.enabled is not None:
        kwargs |= {"enable_thinking": reasoning.enabled, "thinking": reasoning.enabled}
    if body.documents is not None:
        kwargs["documents"] = body.documents
    return kwargs
