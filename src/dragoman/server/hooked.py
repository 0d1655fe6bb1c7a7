"""Puts an operator's formatters and handler into a model's dialects: the LMI routes get them, all others stay as they are.

Does: adapt the LMI dialect to what hooks need of it, replace the dialects of the LMI routes.
Does not: load or call the operator's code (`hooks` does). Called by the composition root at start-up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dragoman.errors import ServerError
from dragoman.hooks import Fields, HandlerDialect, HandlerRuntime, HookedDialect, HookOptions, Hooks
from dragoman.hooks.dialect import make_input
from dragoman.hooks.formatter import InputFormatter, takes_payload
from dragoman.server.dialects.base import Call, Dialect, HttpCall, Reply, Runner
from dragoman.server.dialects.choose import choose
from dragoman.server.dialects.lmi import LmiDialect
from dragoman.server.dialects.lmi_body import Payload, read_payload
from dragoman.server.framing import JSON_MEDIA_TYPE
from dragoman.server.registry import DialectSet


class HookableLmi:
    """The LMI dialect, in two steps: reading the fields, and making a call of them."""

    def __init__(self, dialect: LmiDialect) -> None:
        self._dialect = dialect

    def parse(self, http: HttpCall) -> Call:
        """The call. Raises: InvalidPayload, InvalidParameter."""
        return self._dialect.parse(http)

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """LMI's answer to a failed call."""
        return self._dialect.error_reply(error, http)

    def read_fields(self, http: HttpCall) -> Fields:
        """The fields of a request. Raises: InvalidPayload."""
        payload = read_payload(http)
        return Fields(payload.inputs, payload.parameters, payload.stream, payload.unknown)

    def parse_fields(self, fields: Fields, http: HttpCall) -> Call:
        """The call that these fields make. Raises: InvalidPayload, InvalidParameter."""
        payload = Payload(fields.inputs, fields.parameters, fields.stream, fields.unknown)
        return self._dialect.parse_payload(payload, http)


def with_hooks(dialects: DialectSet, lmi: LmiDialect, hooks: Hooks, options: HookOptions, run: Runner) -> DialectSet:
    """The dialects with the operator's formatters around `lmi`.

    An input formatter reads every body of the LMI routes, conversations too, as LMI has it. Without one, conversations and
    completions keep their own form: LMI's output formatters do not see them either.
    """
    if hooks.input_formatter is None and hooks.output_formatter is None:
        return dialects
    if hooks.input_formatter is not None and takes_payload(hooks.input_formatter):
        bare = replace(hooks, input_formatter=None)
        return _with_payloads(with_hooks(dialects, lmi, bare, options, run), hooks.input_formatter, options, run)
    hooked = HookedDialect(HookableLmi(lmi), hooks, options, run)
    if hooks.input_formatter is None:
        return replace(dialects, lmi=hooked)
    return replace(dialects, lmi=hooked, chat_invocations=hooked, completions_invocations=hooked)


class PayloadDialect:
    """The dialects of the LMI routes behind an input formatter that rewrites decoded bodies.

    Which of them answers is decided by the body that the formatter returns, as in LMI.
    """

    def __init__(self, inner: DialectSet, formatter: InputFormatter, run: Runner) -> None:
        self._inner = inner
        self._formatter = formatter
        self.run_off_loop = run

    def parse(self, http: HttpCall) -> Call:
        """The call that the rewritten body makes. Raises: HookError, and what the dialect raises."""
        headers = {**http.headers, "content-type": JSON_MEDIA_TYPE}
        written = replace(http, body=self._formatter.payload(make_input(http)), headers=headers)
        return self._pick(written).parse(written)

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a failed call, in the shape that the client's own body asks for."""
        return self._pick(http).error_reply(error, http)

    def _pick(self, http: HttpCall) -> Dialect:
        match choose(http):
            case "chat":
                return self._inner.chat_invocations
            case "completions":
                return self._inner.completions_invocations
            case "lmi":
                return self._inner.lmi


def _with_payloads(dialects: DialectSet, function: Callable[..., Any], options: HookOptions, run: Runner) -> DialectSet:
    made = PayloadDialect(dialects, InputFormatter(function, options.context), run)
    return replace(dialects, lmi=made, chat_invocations=made, completions_invocations=made)


def with_handler(dialects: DialectSet, runtime: HandlerRuntime) -> DialectSet:
    """The dialects with the operator's handler in front of those of the LMI routes: it gets every body of these."""
    return replace(
        dialects,
        lmi=HandlerDialect(dialects.lmi, runtime),
        chat_invocations=HandlerDialect(dialects.chat_invocations, runtime),
        completions_invocations=HandlerDialect(dialects.completions_invocations, runtime),
    )
