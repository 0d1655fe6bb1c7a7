"""Puts an operator's formatters around the LMI dialect: one reads requests, the other writes answers.

Does: hand requests to the input formatter, choose the output formatter, build what they see. Does not: know how LMI reads
parameters (`LmiParser` does) or run on the event loop: `run_off_loop` moves all of it to a hook thread.
One instance per served model, used by the routes. Source: LMI's input_parser, v0.31.
"""

from __future__ import annotations

import copy
import email.parser
import email.policy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl

from dragoman.errors import ServerError
from dragoman.hooks.encoder import HookedEncoder, make_state
from dragoman.hooks.formatter import InputFormatter, OutputFormatter, bad_input
from dragoman.hooks.inputs import Input
from dragoman.hooks.loader import HookLoadError, Hooks
from dragoman.hooks.request_io import RequestInput, TextInput
from dragoman.server.dialects.base import Call, Dialect, HttpCall, Reply, Runner

logger = logging.getLogger("dragoman.hooks")

BUILT_IN_FORMATTERS = ("json", "jsonlines", "sse")


class Fields(NamedTuple):
    """An LMI request before its parameters are read. `unknown`: names of top-level fields without meaning.

    `stream`: what the top level says, None if it says nothing; it wins over the parameter of that name.
    """

    inputs: Any
    parameters: Mapping[str, Any]
    stream: bool | None = None
    unknown: tuple[str, ...] = ()


class LmiParser(Dialect, Protocol):
    """What is needed of the LMI dialect besides what every dialect has."""

    def read_fields(self, http: HttpCall) -> Fields:
        """The fields of a request. Raises: InvalidPayload."""
        ...

    def parse_fields(self, fields: Fields, http: HttpCall) -> Call:
        """The call that these fields make. Raises: InvalidPayload, InvalidParameter."""
        ...


@dataclass(frozen=True, slots=True)
class HookOptions:
    """`context`: keyword arguments for the input formatter. `has_index`: LMI 0.32's `get_next_token`."""

    context: Mapping[str, Any] = field(default_factory=dict)
    has_index: bool = False
    tgi_compat: bool = False


class _Choice(NamedTuple):
    """The output formatter of one request, None for LMI's own, and the name by which LMI's own was asked for."""

    formatter: OutputFormatter | None
    name: str | None = None


class HookedDialect:
    """The LMI dialect with the operator's formatters.

    `run_off_loop`: what its `parse`, and the `full` and `event` of its encoders, are to be called through; None = in place.
    """

    def __init__(self, base: LmiParser, hooks: Hooks, options: HookOptions, run: Runner | None = None) -> None:
        self._base = base
        self._hooks = hooks
        self._options = options
        self.run_off_loop = run
        self._numbers = count()
        self._read: InputFormatter | None = None
        if hooks.input_formatter is not None:
            self._read = InputFormatter(hooks.input_formatter, options.context)

    def parse(self, http: HttpCall) -> Call:
        """The call as the operator's formatter, or LMI, reads it. Raises: HookError, InvalidPayload, InvalidParameter."""
        described, fields = self._described(http)
        choice = self._choose(described, fields)
        if choice.name is not None:
            fields = fields._replace(parameters={**fields.parameters, "output_formatter": choice.name})
        call = self._parse_fields(fields, http)
        if choice.formatter is None:
            return call
        texts = fields.inputs if isinstance(fields.inputs, list) else [fields.inputs]
        states = [
            make_state(request, _for_prompt(described, text), has_index=self._options.has_index)
            for request, text in zip(call.requests, texts, strict=True)
        ]
        encoder = HookedEncoder(choice.formatter, call.encoder, states)
        return replace(call, encoder=encoder, run_off_loop=self.run_off_loop)

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """LMI's answer to a failed call."""
        return self._base.error_reply(error, http)

    def _described(self, http: HttpCall) -> tuple[RequestInput, Fields]:
        """The request as the output formatter will see it, and as the server reads it."""
        if self._read is None:
            fields = self._base.read_fields(http)
            asked = {} if fields.stream is None else {"stream": fields.stream}
            shown = {"stream": False, **fields.parameters, **asked}
            described: RequestInput = TextInput(input_text=fields.inputs, parameters=shown)
        else:
            described = self._read(make_input(http))
            fields = _fields_of(described)
        described.request_id = next(self._numbers)
        described.client_request_id = http.request_id
        described.tgi_compat = self._options.tgi_compat
        described.server_parameters = dict(fields.parameters)
        if isinstance(described, TextInput) and described.tokenizer is None:
            described.tokenizer = self._options.context.get("tokenizer")
        return described, fields

    def _choose(self, described: RequestInput, fields: Fields) -> _Choice:
        """The formatter that the input formatter set, else the one the request names, else the operator's.

        Only the operator's code can name a function of the file: a client could otherwise call any of them.
        """
        own = described.output_formatter
        if callable(own):
            return _Choice(_checked(own))
        if isinstance(own, str):
            return _Choice(None, own) if own in BUILT_IN_FORMATTERS else _Choice(self._named(own))
        asked = fields.parameters.get("output_formatter")
        return _Choice(None if asked in BUILT_IN_FORMATTERS else self._hooks.output_formatter)

    def _named(self, name: str) -> OutputFormatter:
        try:
            return self._hooks.named(name)
        except HookLoadError as error:
            raise bad_input(str(error)) from error

    def _parse_fields(self, fields: Fields, http: HttpCall) -> Call:
        try:
            return self._base.parse_fields(fields, http)
        except ServerError:
            raise
        except (
            Exception
        ) as error:  # hook call: values that no JSON document could hold, so LMI's parser does not expect them
            logger.warning("the input formatter made parameters that cannot be read", exc_info=error)
            raise bad_input(f"The input formatter made parameters that cannot be read: {error}") from error


def _fields_of(described: RequestInput) -> Fields:
    """What an input formatter's request asks for; a function in `output_formatter` is not for the parser."""
    if not isinstance(described.parameters, dict):
        raise bad_input(f"'parameters' must be a dict, got {type(described.parameters).__name__}")
    parameters = dict(described.parameters)
    if callable(parameters.get("output_formatter")):
        own = parameters.pop("output_formatter")
        described.output_formatter = described.output_formatter or own
    return Fields(getattr(described, "input_text", None), parameters)


def _checked(function: Callable[..., Any]) -> OutputFormatter:
    try:
        return OutputFormatter(function)
    except (TypeError, ValueError) as error:
        raise bad_input(str(error)) from error


def _for_prompt(described: RequestInput, text: str) -> RequestInput:
    """The request as the answer to one of its prompts shows it."""
    if getattr(described, "input_text", None) == text:
        return described
    own = copy.copy(described)
    own.input_text = text  # type: ignore[attr-defined]  # a TextInput, or a class of the operator's that is like one
    return own


def make_input(http: HttpCall) -> Input:
    """A call as a model.py sees it: header fields and query as properties; the body as `data`, or a form's parts."""
    properties = {**http.query, **http.headers}
    if http.media_type != "multipart/form-data":
        return Input(properties, [("data", http.body)])
    head = f"content-type: {http.headers['content-type']}\r\n\r\n".encode("utf-8", "replace")
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + http.body)
    parts = [(part.get_param("name", header="content-disposition"), part) for part in message.iter_parts()]
    content = [(str(name), part.get_payload(decode=True)) for name, part in parts if name]
    return Input(properties, [(name, piece) for name, piece in content if isinstance(piece, bytes)])


def handler_input(http: HttpCall, properties: Mapping[str, str]) -> Input:
    """The same as a handler sees it: LMI shows it a form's fields and the query as pieces of content, too.

    `properties` stand behind those of the call.
    """
    item = make_input(http)
    fields: list[tuple[str, str]] = list(http.query.items())
    if http.media_type == "application/x-www-form-urlencoded" and not http.body.lstrip().startswith(b"{"):
        fields = [*parse_qsl(http.body.decode("utf-8", "replace"), keep_blank_values=True), *fields]
    content = [*item.content, *((name, value.encode()) for name, value in fields if not item.contains_key(name))]
    return Input({**properties, **item.properties}, content)
