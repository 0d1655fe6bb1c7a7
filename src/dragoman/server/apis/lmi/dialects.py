"""The dialects of LMI's routes for one model, with an operator's code around them. Called when a model is composed.

Conversations and completions have OpenAI's parameters, LMI's errors, finish reasons and overflow rule.
`/v1/chat/completions` is in OpenAI's and in LMI's documents. Source: LMI 0.31, chat completions and inference API schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from dragoman.errors import ServerError
from dragoman.server.api import JSONLINES_MEDIA_TYPE, SSE_MEDIA_TYPE, Dialect, Dialects, HttpCall, ModelProfile
from dragoman.server.apis.lmi.dialect import (
    CHAT,
    COMPLETIONS,
    FORMATTERS,
    INPUTS,
    V1_CHAT,
    LmiDialect,
    LmiPoolingDialect,
    WithAdapters,
)
from dragoman.server.apis.lmi.errors import FRONT_END, STATUSES, FrontError, LmiShortError, front_end_body, short_body
from dragoman.server.apis.lmi.hooks.loader import Hooks
from dragoman.server.apis.lmi.hooks.threads import HookPool
from dragoman.server.apis.lmi.operator.formatters import with_hooks
from dragoman.server.apis.lmi.operator.handler_model import HandlerModel
from dragoman.server.apis.lmi.operator.handlers import HandlerRuntime, with_handler
from dragoman.server.apis.lmi_wire.answers import LMI_FINISH
from dragoman.server.apis.lmi_wire.parameters import LmiOptions
from dragoman.server.apis.openai_wire.chat import ChatDialect
from dragoman.server.apis.openai_wire.completions import CompletionsDialect
from dragoman.server.apis.openai_wire.errors import error_shape
from dragoman.server.apis.openai_wire.profile import V1, Profile
from dragoman.server.registry import GenerationService
from dragoman.server.security.gate import KEY_HEADERS

_KEYS = ("authorization", *KEY_HEADERS)


def _body(error: ServerError) -> FrontError | LmiShortError:
    """LMI's conversations tell all that concerns the model in the short form, bad parameters too."""
    return front_end_body(error) if error.kind in FRONT_END else short_body(error)


# In a stream LMI knows one form only, whatever the status would have been.
ERRORS = error_shape(STATUSES, (FrontError, LmiShortError), _body, in_stream=short_body)

LMI = Profile(
    name="lmi", errors=ERRORS, finish_words=LMI_FINISH, ignores_model=True, clips_overflow=True, fixes_defaults=True
)

_OPENAI = replace(V1, ignores_model=True, clips_overflow=True, fixes_defaults=True)


def lmi_route(model: ModelProfile, http: HttpCall) -> Profile:
    """LMI's profile unless server-sent events are asked for."""
    return _OPENAI if SSE_MEDIA_TYPE in http.accept else LMI


def negotiate(model: ModelProfile, http: HttpCall) -> Profile:
    """In `auto` LMI's for a server configured like LMI's containers, and for plain curl, the example in LMI's document."""
    if JSONLINES_MEDIA_TYPE in http.accept:
        return LMI
    chat_format = model.settings.get("chat_format", "auto")
    if chat_format != "auto":
        return LMI if chat_format == "lmi" else V1
    if SSE_MEDIA_TYPE in http.accept:
        return V1
    return LMI if model.settings.get("has_lmi_signs") or _is_plain_curl(http.headers) else V1


def _is_plain_curl(headers: Mapping[str, str]) -> bool:
    agent = headers.get("user-agent", "").strip().lower()
    if agent and not agent.startswith("curl/"):
        return False
    return not any(headers.get(name, "").strip() for name in _KEYS)


@dataclass(frozen=True, slots=True)
class OperatorCode:
    """`context`: arguments for formatters, None = there is no model to call them for. `service` generates for a handler."""

    hooks: Hooks
    timeout_s: float | None = None
    runtime: HandlerRuntime | None = None
    context: Mapping[str, Any] | None = None
    service: GenerationService | None = None


def options_of(profile: ModelProfile) -> LmiOptions:
    """The operator's options for LMI's schema, without a formatter that is the operator's own."""
    names = {field.name for field in fields(LmiOptions)}
    options = LmiOptions(model=profile, **{name: value for name, value in profile.settings.items() if name in names})
    return options if options.output_formatter in FORMATTERS else replace(options, output_formatter=None)


def set_up(profile: ModelProfile) -> Dialects:
    options = options_of(profile)
    plain: dict[str, Dialect] = {
        INPUTS: LmiDialect(options) if profile.pooling is None else LmiPoolingDialect(profile),
        CHAT: ChatDialect(profile, lmi_route),
        COMPLETIONS: CompletionsDialect(profile, LMI),
    }
    if profile.takes_adapters:
        plain |= {name: WithAdapters(plain[name]) for name in (CHAT, COMPLETIONS)}
    code = profile.operator_code
    dialects = _with_operator_code(plain, code, options) if isinstance(code, OperatorCode) else plain
    return {**dialects, V1_CHAT: ChatDialect(profile, negotiate)}


def _with_operator_code(plain: Dialects, code: OperatorCode, options: LmiOptions) -> Dialects:
    dialects = plain
    if code.context is not None:
        # an operator's formatter takes the place of option.output_formatter, which would stream every answer
        base = options if code.hooks.output_formatter is None else replace(options, output_formatter=None)
        dialects = with_hooks(plain, LmiDialect(base), code.hooks, code.context, HookPool(code.timeout_s).run)
    runtime, service = code.runtime, code.service
    if runtime is None:
        return dialects
    if service is not None:
        lmi, dynamic = LmiDialect(options), LmiDialect(replace(options, rolling_batch="disable"))
        runtime = replace(runtime, make_access=lambda http: HandlerModel(lmi, dynamic, service, http.request_id))
    return with_handler(dialects, runtime)
