"""Chat on `/v1`, `/v3` and, for bodies with `messages`, `/invocations`: OpenAI's shape and LMI's over one implementation.

Does: choose the shape of a call, turn its body into one GenerationRequest. Does not: encode; `encoder` does.
Built by the composition root, one per served model and route; called on the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dragoman.errors import ServerError
from dragoman.server.api import Call, HttpCall, PureDialect, Reply
from dragoman.server.apis.openai_wire.chat.encoder import ChatEncoder, ChatShape
from dragoman.server.apis.openai_wire.chat.messages import (
    ToolUse,
    check_restricted,
    check_sizes,
    continues_final_message,
    template_messages,
    tool_use,
)
from dragoman.server.apis.openai_wire.chat.schema import ChatBody
from dragoman.server.apis.openai_wire.common import OpenAiOptions, effort_switches
from dragoman.server.apis.openai_wire.fields import decode_object, peek_object, read_struct
from dragoman.server.apis.openai_wire.profile import V1, Profile
from dragoman.server.apis.openai_wire.sampling import (
    Reading,
    check_shared,
    logprob_count,
    reasons_of,
    shared_request,
    tells_progress,
    without_effect,
)
from dragoman.server.apis.openai_wire.thinking import ReasoningBody
from dragoman.types import ChatPrompt, GenerationRequest

LMI_STRICT_MAX_TOKENS = 30  # what LMI v0.31 generates for a conversation without max_tokens

Negotiate = Callable[["ChatOptions", HttpCall, Mapping[str, Any]], ChatShape]
"""The shape of the answer to a call; the mapping is its decoded body, {} if it is unusable."""


@dataclass(frozen=True, slots=True)
class ChatRoute:
    """Differences between the routes of conversations.

    `profiles`: by the shape of the answer. `negotiate` chooses it. `unread`: words the errors about an unusable body.
    """

    profiles: Mapping[ChatShape, Profile]
    negotiate: Negotiate
    unread: Profile = V1


@dataclass(frozen=True, slots=True)
class ChatOptions(OpenAiOptions):
    """Configuration of one chat route.

    `chat_format` decides the shape on `/v1` only, with `has_lmi_signs`: the server is configured as LMI's containers are.
    `lmi_strict` reproduces LMI v0.31 to the letter where it errs.
    """

    route: ChatRoute
    chat_format: Literal["lmi", "openai", "auto"] = "auto"
    has_lmi_signs: bool = False
    lmi_strict: bool = False


class _Route(NamedTuple):
    """The shape of one call, and its profile."""

    shape: ChatShape
    profile: Profile


class ChatDialect(PureDialect):
    """Translates conversations. `clock` returns Unix time in seconds."""

    def __init__(self, options: ChatOptions, clock: Callable[[], float] = time.time) -> None:
        self._options = options
        self._clock = clock

    def parse(self, http: HttpCall) -> Call:
        """One request. Raises: InvalidRequest."""
        # An unusable body is refused before its shape matters: the words are the route's.
        raw = decode_object(http, self._options.route.unread)
        route = self._route(http, raw)
        reading = Reading(route.profile, self._options)
        body = read_struct(raw, ChatBody, route.profile)
        check_shared(raw, body, reading)
        if body.max_completion_tokens is not None:
            body.max_tokens = body.max_completion_tokens
        top_logprobs = _top_logprobs(body, route, reading, needs_top=self._is_strict(route))
        check_sizes(body, self._options.limits, route.profile)
        tools = tool_use(body, raw, route.profile)
        request = self._request(body, route, reading, http.request_id, top_logprobs, tools)
        ignored = without_effect(raw, body, request, reading)
        if top_logprobs is None:
            ignored += [name for name in ("top_logprobs",) if raw.get(name)]
        encoder = ChatEncoder(
            body,
            request,
            reading,
            http,
            self._clock,
            is_openai=route.shape == "openai",
            has_lmi_slips=self._is_strict(route),
        )
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
        """True where the answer has LMI's shape: LMI does not look at `model`."""
        return self._route(http, peek_object(http)).profile.ignores_model

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The error in the shape this call would have been answered in."""
        return self._route(http, peek_object(http)).profile.errors.reply(error)

    def _route(self, http: HttpCall, raw: Mapping[str, Any]) -> _Route:
        route = self._options.route
        shape = route.negotiate(self._options, http, raw)
        return _Route(shape, route.profiles[shape])

    def _is_strict(self, route: _Route) -> bool:
        return self._options.lmi_strict and route.shape == "lmi"

    def _request(
        self,
        body: ChatBody,
        route: _Route,
        reading: Reading,
        request_id: str,
        top_logprobs: int | None,
        tools: ToolUse,
    ) -> GenerationRequest:
        messages = template_messages(body.messages, route.profile)
        check_restricted(messages, route.profile)
        continues = continues_final_message(body, route.profile)
        prompt = ChatPrompt(messages, tools.tools, continues, _template_kwargs(body, continues=continues))
        return shared_request(
            body,
            reading,
            request_id=request_id,
            prompt=prompt,
            logprobs=top_logprobs,
            max_tokens=LMI_STRICT_MAX_TOKENS if self._is_strict(route) else None,
            parse_tool_calls=tools.is_parsed,
            parse_reasoning=True,
            tool_choice=tools.choice,
            called_tool=tools.called_tool,
            passed_over=tools.passed_over,
            parallel_tool_calls=body.parallel_tool_calls is not False and not body.functions,
        )


def _top_logprobs(body: ChatBody, route: _Route, reading: Reading, *, needs_top: bool) -> int | None:
    """Number of candidates to show per token; None = no logprobs. `needs_top`: `logprobs: true` alone does nothing."""
    if body.n_probs is not None:
        logprob_count("n_probs", body.n_probs, reading)
        if body.n_probs and body.logprobs is None and body.top_logprobs is None:
            body.logprobs, body.top_logprobs = True, body.n_probs
    if body.top_logprobs is not None:
        body.top_logprobs = logprob_count("top_logprobs", body.top_logprobs, reading)
    if body.logprobs:
        return None if needs_top and not body.top_logprobs else body.top_logprobs or 0
    if body.top_logprobs and route.shape == "openai":
        message = f"top_logprobs needs logprobs: true, got top_logprobs {body.top_logprobs}"
        raise route.profile.fault("top_logprobs", "without_logprobs", message)
    return None


def _template_kwargs(body: ChatBody, *, continues: bool) -> dict[str, Any]:
    """Variables of the chat template besides the conversation."""
    reasoning = body.reasoning or ReasoningBody()
    kwargs = effort_switches(body.reasoning_effort or reasoning.effort)
    if reasoning.enabled is not None:
        kwargs |= {"enable_thinking": reasoning.enabled, "thinking": reasoning.enabled}
    if body.documents is not None:
        kwargs["documents"] = body.documents
    if body.add_generation_prompt is False and not continues:
        kwargs["add_generation_prompt"] = False
    return kwargs | (body.chat_template_kwargs or {})
