"""The dialects of LMI's routes for one model, with an operator's code around them. Called when a model is composed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from dragoman.server.api import Dialect, Dialects, ModelProfile
from dragoman.server.apis.lmi.adapters import WithAdapters
from dragoman.server.apis.lmi.choose import CHAT, COMPLETIONS, INPUTS, V1_CHAT
from dragoman.server.apis.lmi.conversations import LMI, lmi_route, negotiate
from dragoman.server.apis.lmi.dialect import FORMATTERS, LmiDialect, LmiOptions
from dragoman.server.apis.lmi.hooks.loader import Hooks
from dragoman.server.apis.lmi.hooks.threads import HookPool
from dragoman.server.apis.lmi.operator.formatters import with_hooks
from dragoman.server.apis.lmi.operator.handler_model import HandlerModel
from dragoman.server.apis.lmi.operator.handlers import HandlerRuntime, with_handler
from dragoman.server.apis.lmi.pooling import LmiPoolingDialect
from dragoman.server.apis.openai_wire.chat import ChatDialect
from dragoman.server.apis.openai_wire.completions import CompletionsDialect
from dragoman.server.registry import GenerationService


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
