"""Puts an operator's formatters around the LMI dialect: one reads requests, the other writes answers.

Neither runs on the event loop: `run_off_loop` moves them to a hook thread. Source: LMI's input_parser, v0.31.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import msgspec

from dragoman.errors import ServerError
from dragoman.server.api import JSON_MEDIA_TYPE, Call, Dialect, Dialects, HttpCall, Opening, Reply, Runner
from dragoman.server.apis.lmi.choose import dialect_of_body
from dragoman.server.apis.lmi.dialect import FORMATTERS, LmiDialect
from dragoman.server.apis.lmi.hooks.functions import InputFormatter, OutputFormatter, bad_input, takes_payload
from dragoman.server.apis.lmi.hooks.loader import HookLoadError, Hooks
from dragoman.server.apis.lmi.hooks.request_io import RequestInput, TextInput
from dragoman.server.apis.lmi.operator.encoder import HookedEncoder, OutputState
from dragoman.server.apis.lmi.operator.messages import make_input
from dragoman.server.apis.lmi_wire.body import Payload, read_payload

logger = logging.getLogger("dragoman.hooks")


class HookedDialect:
    """`context`: keyword arguments for the input formatter. `run` moves `parse`, `full` and `event` off the event loop."""

    def __init__(self, base: LmiDialect, hooks: Hooks, context: Mapping[str, Any], run: Runner) -> None:
        self._base = base
        self._hooks = hooks
        self._tokenizer = context.get("tokenizer")
        self._run = run
        self._numbers = count()
        self._read: InputFormatter | None = None
        if hooks.input_formatter is not None:
            self._read = InputFormatter(hooks.input_formatter, context)

    def parse(self, http: HttpCall) -> Call:
        described, payload = self._described(http)
        chosen = self._choose(described, payload)
        if isinstance(chosen, str):
            payload = msgspec.structs.replace(payload, parameters={**payload.parameters, "output_formatter": chosen})
        call = self._parse_payload(payload, http)
        if not isinstance(chosen, OutputFormatter):
            return call
        texts = payload.inputs if isinstance(payload.inputs, list) else [payload.inputs]
        has_index = self._base.options.lmi_version == "0.32"
        states = [
            OutputState(request, _for_prompt(described, text), has_index=has_index)
            for request, text in zip(call.requests, texts, strict=True)
        ]
        encoder = HookedEncoder(chosen, call.encoder, states)
        return msgspec.structs.replace(call, encoder=encoder, run_off_loop=self._run)

    def open(self, http: HttpCall) -> Opening:
        return Opening(partial(self.parse, http), run_off_loop=self._run)

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        return self._base.error_reply(error, http)

    def _described(self, http: HttpCall) -> tuple[RequestInput, Payload]:
        if self._read is None:
            payload = read_payload(http)
            asked = {} if payload.stream is None else {"stream": payload.stream}
            shown = {"stream": False, **payload.parameters, **asked}
            described: RequestInput = TextInput(input_text=payload.inputs, parameters=shown)
        else:
            described = self._read(make_input(http))
            payload = _payload_of(described)
        described.request_id = next(self._numbers)
        described.client_request_id = http.request_id
        described.tgi_compat = self._base.options.tgi_compat
        described.server_parameters = dict(payload.parameters)
        if isinstance(described, TextInput) and described.tokenizer is None:
            described.tokenizer = self._tokenizer
        return described, payload

    def _choose(self, described: RequestInput, payload: Payload) -> OutputFormatter | str | None:
        """The formatter that the input formatter set, else the one the request names, else the operator's.

        Only the operator's code can name a function of the file: a client could otherwise call any of them.
        """
        own = described.output_formatter
        if not isinstance(own, str) and not callable(own):
            asked = payload.parameters.get("output_formatter")
            return None if asked in FORMATTERS else self._hooks.output_formatter
        if isinstance(own, str) and own in FORMATTERS:
            return own
        try:
            return self._hooks.named(own) if isinstance(own, str) else OutputFormatter(own)
        except (TypeError, ValueError, HookLoadError) as error:
            raise bad_input(str(error)) from error

    def _parse_payload(self, payload: Payload, http: HttpCall) -> Call:
        try:
            return self._base.parse_payload(payload, http)
        except ServerError:
            raise
        except (
            Exception
        ) as error:  # hook call: values that no JSON document could hold, which the parser does not expect
            logger.warning("the input formatter made parameters that cannot be read", exc_info=error)
            raise bad_input(f"The input formatter returned parameters that cannot be read: {error}") from error


def _payload_of(described: RequestInput) -> Payload:
    """The payload of an input formatter's request; a function in `output_formatter` is not for the parser."""
    if not isinstance(described.parameters, dict):
        raise bad_input(f"'parameters' must be a dict, got {type(described.parameters).__name__}")
    parameters = dict(described.parameters)
    if callable(parameters.get("output_formatter")):
        own = parameters.pop("output_formatter")
        described.output_formatter = described.output_formatter or own
    return Payload(getattr(described, "input_text", None), parameters)


def _for_prompt(described: RequestInput, text: str) -> RequestInput:
    if getattr(described, "input_text", None) == text:
        return described
    own = copy.copy(described)
    own.input_text = text  # type: ignore[attr-defined]  # a TextInput, or a class of the operator's that is like one
    return own


def with_hooks(dialects: Dialects, lmi: LmiDialect, hooks: Hooks, context: Mapping[str, Any], run: Runner) -> Dialects:
    """The dialects of the LMI routes, by name, with the operator's formatters around `lmi`, which is the one called `lmi`.

    An input formatter reads every body of these routes, as LMI has it. Output formatters do not see conversations either.
    """
    if hooks.input_formatter is None and hooks.output_formatter is None:
        return dialects
    if hooks.input_formatter is not None and takes_payload(hooks.input_formatter):
        inner = with_hooks(dialects, lmi, replace(hooks, input_formatter=None), context, run)
        behind = PayloadDialect(inner, InputFormatter(hooks.input_formatter, context), run)
        return dict.fromkeys(dialects, behind)
    hooked = HookedDialect(lmi, hooks, context, run)
    if hooks.input_formatter is None:
        return {**dialects, "lmi": hooked}
    return dict.fromkeys(dialects, hooked)


class PayloadDialect:
    """Behind an input formatter that rewrites decoded bodies: what it returns decides which dialect answers, as in LMI."""

    def __init__(self, inner: Dialects, formatter: InputFormatter, run: Runner) -> None:
        self._inner = inner
        self._formatter = formatter
        self._run = run

    def open(self, http: HttpCall) -> Opening:
        return Opening(partial(self.parse, http), run_off_loop=self._run)

    def parse(self, http: HttpCall) -> Call:
        headers = {**http.headers, "content-type": JSON_MEDIA_TYPE}
        written = msgspec.structs.replace(http, body=self._formatter.payload(make_input(http)), headers=headers)
        return self._pick(written).open(written).parse()

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a failed call, in the shape that the client's own body asks for."""
        return self._pick(http).error_reply(error, http)

    def _pick(self, http: HttpCall) -> Dialect:
        return self._inner[dialect_of_body(http)]
