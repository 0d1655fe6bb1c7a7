"""Puts an operator's formatters around the LMI dialect: one reads requests, the other's strings are the answer.

Neither runs on the event loop: `run_off_loop` moves them, with `full` and `event` of the encoder, to a hook thread.
Streaming, the output formatter is called once per token, and again while it advances through tokens that it has not seen.
Not streaming: once per token, the last time with `finished`. Source: LMI's input_parser, v0.31.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import msgspec

from dragoman.errors import ServerError
from dragoman.server.api import (
    JSON_MEDIA_TYPE,
    JSONLINES_MEDIA_TYPE,
    Call,
    Dialect,
    Dialects,
    Encoder,
    Head,
    HttpCall,
    IndexedEvent,
    Opening,
    Reply,
    Runner,
)
from dragoman.server.apis.lmi.dialect import FORMATTERS, LmiDialect, dialect_of_body
from dragoman.server.apis.lmi.hooks import request_io as io
from dragoman.server.apis.lmi.hooks.functions import InputFormatter, OutputFormatter, bad_input, takes_payload
from dragoman.server.apis.lmi.hooks.loader import HookLoadError, Hooks
from dragoman.server.apis.lmi.operator.messages import make_input
from dragoman.server.apis.lmi_wire.answers import LMI_FINISH, best_first
from dragoman.server.apis.lmi_wire.body import Payload, read_payload
from dragoman.types import GenerationEvent, GenerationRequest, GenerationResult, PromptInfo, SequenceResult, TokenOutput

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

    def _described(self, http: HttpCall) -> tuple[io.RequestInput, Payload]:
        if self._read is None:
            payload = read_payload(http)
            stream = {} if payload.stream is None else {"stream": payload.stream}
            shown = {"stream": False, **payload.parameters, **stream}
            described: io.RequestInput = io.TextInput(input_text=payload.inputs, parameters=shown)
        else:
            described = self._read(make_input(http))
            payload = _payload_of(described)
        described.request_id = next(self._numbers)
        described.client_request_id = http.request_id
        described.tgi_compat = self._base.options.tgi_compat
        described.server_parameters = dict(payload.parameters)
        if isinstance(described, io.TextInput) and described.tokenizer is None:
            described.tokenizer = self._tokenizer
        return described, payload

    def _choose(self, described: io.RequestInput, payload: Payload) -> OutputFormatter | str | None:
        """The formatter that the input formatter set, else the one the request names, else the operator's.

        Only the operator's code can name a function of the file: a client could otherwise call any of them.
        """
        formatter = described.output_formatter
        if not isinstance(formatter, str) and not callable(formatter):
            name = payload.parameters.get("output_formatter")
            return None if name in FORMATTERS else self._hooks.output_formatter
        if isinstance(formatter, str) and formatter in FORMATTERS:
            return formatter
        try:
            return self._hooks.named(formatter) if isinstance(formatter, str) else OutputFormatter(formatter)
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


def _payload_of(described: io.RequestInput) -> Payload:
    """The payload of an input formatter's request; a function in `output_formatter` is not for the parser."""
    if not isinstance(described.parameters, dict):
        raise bad_input(f"'parameters' must be a dict, got {type(described.parameters).__name__}")
    parameters = dict(described.parameters)
    if callable(parameters.get("output_formatter")):
        formatter = parameters.pop("output_formatter")
        described.output_formatter = described.output_formatter or formatter
    return Payload(getattr(described, "input_text", None), parameters)


def _for_prompt(described: io.RequestInput, text: str) -> io.RequestInput:
    if getattr(described, "input_text", None) == text:
        return described
    copied = copy.copy(described)
    copied.input_text = text  # type: ignore[attr-defined]  # a TextInput, or a class of the operator's that is like one
    return copied


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
        written = http.with_json(self._formatter.payload(make_input(http)))
        return self._pick(written).open(written).parse()

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        """The answer to a failed call, in the shape that the client's own body asks for."""
        return self._pick(http).error_reply(error, http)

    def _pick(self, http: HttpCall) -> Dialect:
        return self._inner[dialect_of_body(http)]


MAX_IDLE_CALLS = 2  # calls in a row that hand out no token, after which a formatter that usually does is left alone


class OutputState:
    """One request's formatter objects and how they grow. `described`: what the formatter sees as its input."""

    def __init__(self, request: GenerationRequest, described: io.RequestInput, *, has_index: bool) -> None:
        self.output = io.TextGenerationOutput(request_id=described.request_id, input=described)
        self._has_index = has_index
        self._has_top_tokens = bool(request.sampling.logprobs)
        self.has_advanced = False
        self.num_unfinished = 1
        self.sequence(0)

    def sequence(self, index: int) -> io.Sequence:
        return self.output.sequences.setdefault(index, io.Sequence(has_index=self._has_index))

    def add(self, index: int, token: TokenOutput | None, ending: SequenceResult | GenerationEvent | None) -> None:
        """Append a token (None: LMI's placeholder), the last one if there is an `ending`."""
        sequence = self.sequence(index)
        made = io.Token(-1, "") if token is None else io.Token(token.id, token.text, token.logprob)
        if token is not None and token.special:
            made.special_token = True
        made.request_id = self.output.request_id
        sequence.set_next_token(made, is_last_token=ending is not None)
        if self._has_top_tokens and token is not None:
            sequence.set_next_top_tokens([io.Token(top.id, top.text, top.logprob) for top in token.top])
        if ending is not None and ending.finish_reason is not None:
            sequence.finish_reason = LMI_FINISH[ending.finish_reason]
            sequence.stop_reason = ending.stop_match
            sequence.cumulative_log_prob = ending.cumulative_logprob or 0.0
            self.num_unfinished -= 1
            self.output.finished = self.num_unfinished == 0

    def set_prompt(self, prompt: PromptInfo) -> None:
        self.output.prompt_tokens_details = [
            io.Token(token.id, token.token_text or token.text, token.logprob) for token in prompt.tokens
        ]


class HookedEncoder(Encoder):
    """One per call: answers in the operator's form.

    `base` tells failures in LMI's. `states`: one for each request of the call.
    """

    def __init__(self, formatter: OutputFormatter, base: Encoder, states: Sequence[OutputState]) -> None:
        self._formatter = formatter
        self._base = base
        self._states = states

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        """LMI sends no content type; clients of its default formatters look for those of JSON and of JSON lines."""
        bodies = [self._replay(state, result) for state, result in zip(self._states, results, strict=True)]
        if len(bodies) == 1:
            return Reply(200, bodies[0], JSON_MEDIA_TYPE)
        lines = [body if body.endswith(b"\n") else body + b"\n" for body in bodies]
        return Reply(200, b"".join(lines), JSONLINES_MEDIA_TYPE)

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        return Head(JSONLINES_MEDIA_TYPE)

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        if event.index:
            return b""
        state = self._states[request_index]
        if event.prompt is not None:
            state.set_prompt(event.prompt)
        is_end = event.finish_reason is not None
        tokens = event.tokens or ((None,) if is_end else ())
        parts: list[bytes] = []
        for position, token in enumerate(tokens, start=1):
            state.add(0, token, event if is_end and position == len(tokens) else None)
            parts.append(self._walk(state))
        return b"".join(parts)

    def stream_error(self, error: ServerError) -> bytes | None:
        return self._base.stream_error(error)

    def _walk(self, state: OutputState) -> bytes:
        sequence = state.sequence(0)
        parts: list[bytes] = []
        num_idle = 0
        while sequence.has_next_token():
            before = sequence.position
            parts.append(self._formatter.call(state.output))
            if sequence.position > before:
                state.has_advanced, num_idle = True, 0
                continue
            num_idle += 1
            if not state.has_advanced or num_idle == MAX_IDLE_CALLS:
                break
        return b"".join(parts)

    def _replay(self, state: OutputState, result: GenerationResult) -> bytes:
        output = state.output
        state.set_prompt(result.prompt)
        is_ranked = result.request.sampling.num_beams > 1
        best, *others = [sequence.index for sequence in best_first(result.sequences, is_ranked=is_ranked)]
        output.best_sequence_index, output.other_sequences_indices = best, others
        state.num_unfinished = len(result.sequences)
        for sequence in result.sequences:
            state.sequence(sequence.index)
        num_steps = max(1, *(len(sequence.tokens) for sequence in result.sequences), 1)
        parts: list[bytes] = []
        for step in range(num_steps):
            for sequence in result.sequences:
                _add_step(state, sequence, step)
            parts.append(self._formatter.call(output))
        return b"".join(parts)


def _add_step(state: OutputState, sequence: SequenceResult, step: int) -> None:
    """A sequence without any token gets the placeholder."""
    tokens = sequence.tokens or (None,)
    if step < len(tokens):
        state.add(sequence.index, tokens[step], sequence if step == len(tokens) - 1 else None)


def written_by(formatter: OutputFormatter, call: Call, body: Mapping[str, Any]) -> HookedEncoder:
    """The encoder of a call that a handler makes with an output formatter of its own."""
    texts = body["inputs"] if isinstance(body["inputs"], list) else [body["inputs"]]
    described = [io.TextInput(input_text=text, parameters=dict(body.get("parameters", {}))) for text in texts]
    states = [
        OutputState(request, description, has_index=False)
        for request, description in zip(call.requests, described, strict=True)
    ]
    return HookedEncoder(formatter, call.encoder, states)
