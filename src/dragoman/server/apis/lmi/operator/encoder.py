"""Encodes an answer through the operator's output formatter: its strings are the answer, byte for byte.

One encoder per call; `full` and `event` run on a hook thread. Streaming, the formatter is called once per token, and again
while it advances through tokens that it has not seen. Not streaming: once per token, the last time with `finished`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.errors import ServerError
from dragoman.server.api import JSON_MEDIA_TYPE, JSONLINES_MEDIA_TYPE, Call, Encoder, Head, IndexedEvent, Reply
from dragoman.server.apis.lmi.hooks import request_io as io
from dragoman.server.apis.lmi.hooks.functions import OutputFormatter
from dragoman.server.apis.lmi_wire.answers import LMI_FINISH, best_first
from dragoman.types import (
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    PromptInfo,
    SequenceResult,
    TokenOutput,
)

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
    """Answers in the operator's form; `base` tells failures in LMI's. `states`: one for each request of the call."""

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
    states = [OutputState(request, one, has_index=False) for request, one in zip(call.requests, described, strict=True)]
    return HookedEncoder(formatter, call.encoder, states)
