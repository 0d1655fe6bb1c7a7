"""Puts an operator's formatters and handler into a model's dialects: the LMI routes get them, all others stay as they are.

Does: adapt the LMI dialect to what hooks need of it, replace the dialects of the LMI routes.
Does not: load or call the operator's code (`hooks` does). Called by the composition root at start-up.
"""

from __future__ import annotations

from dataclasses import replace

from dragoman.errors import ServerError
from dragoman.hooks import Fields, HandlerDialect, HandlerRuntime, HookedDialect, HookOptions, Hooks
from dragoman.server.dialects.base import Call, HttpCall, Reply, Runner
from dragoman.server.dialects.lmi import LmiDialect
from dragoman.server.dialects.lmi_body import Payload, read_payload
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
    hooked = HookedDialect(HookableLmi(lmi), hooks, options, run)
    if hooks.input_formatter is None:
        return replace(dialects, lmi=hooked)
    return replace(dialects, lmi=hooked, chat_invocations=hooked, completions_invocations=hooked)


def with_handler(dialects: DialectSet, runtime: HandlerRuntime) -> DialectSet:
    """The dialects with the operator's handler in front of those of the LMI routes: it gets every body of these."""
    return replace(
        dialects,
        lmi=HandlerDialect(dialects.lmi, runtime),
        chat_invocations=HandlerDialect(dialects.chat_invocations, runtime),
        completions_invocations=HandlerDialect(dialects.completions_invocations, runtime),
    )
