"""Encodes answers of `/api/generate` and `/api/chat`: one object, or a line for each piece and one for the end.

Does: texts, reasoning, tool calls with their arguments as objects, log-probabilities, counts, durations.
Does not: parse. One encoder per call, on the event loop; `event` runs once per step, so it stays cheap.
Source: Ollama API reference (docs/api.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.errors import ServerError
from dragoman.server.api import NDJSON_MEDIA_TYPE, Encoder, Head, IndexedEvent, Reply, json_reply, jsonline
from dragoman.server.apis.ollama.errors import OllamaError
from dragoman.server.apis.ollama.schema import (
    DoneReason,
    OllamaAnswerMessage,
    OllamaCall,
    OllamaCalledFunction,
    OllamaChatted,
    OllamaGenerated,
    OllamaLogprob,
    OllamaTopLogprob,
)
from dragoman.server.apis.openai_wire.common import json_logprob
from dragoman.server.timings import Timings
from dragoman.types import (
    FinishReason,
    GenerationEvent,
    GenerationResult,
    TokenOutput,
    ToolCall,
    ToolCallDelta,
)

_REASONS: dict[FinishReason, DoneReason] = {
    FinishReason.EOS: "stop",
    FinishReason.STOP_TOKEN: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.REPETITION: "length",  # no field of this API asks for it
    FinishReason.ABORT: "length",
}
_ENCODER = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Clock:
    """The clocks: `now` in seconds since the epoch; `timer` on the monotonic clock."""

    now: Callable[[], float]
    timer: Callable[[], float]


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """Facts about a call that the encoder needs.

    `model`: the name in the call. `begin_s`: when the call came, on the monotonic clock. `measure`: returns the times of its
    parts, None = not measured. `top_logprobs` None = no log-probabilities. `has_context`: the last object holds the tokens.
    """

    model: str
    clock: Clock
    begin_s: float
    measure: Callable[[], Timings] | None = None
    is_chat: bool = False
    top_logprobs: int | None = None
    has_context: bool = False


def rfc3339(seconds: float) -> str:
    """A time since the epoch as Ollama writes it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(slots=True)
class _Piece:
    """The content of one object."""

    text: str = ""
    thinking: str = ""
    calls: list[OllamaCall] = field(default_factory=list)
    logprobs: list[OllamaLogprob] | UnsetType = UNSET

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.thinking or self.calls or self.logprobs)


class OllamaEncoder(Encoder):
    """Implements `Encoder`; a call has one request with one sequence."""

    def __init__(self, facts: AnswerFacts) -> None:
        self._facts = facts
        self._calls = _OpenCalls()
        self._prompt_ids: tuple[int, ...] = ()
        self._num_tokens = 0
        self._token_ids: list[int] = []
        self._end: FinishReason | None = None

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        """The whole answer."""
        [result] = results
        [sequence] = result.sequences
        self._prompt_ids, self._num_tokens = result.prompt.token_ids, len(sequence.tokens)
        self._token_ids = [token.id for token in sequence.tokens]
        calls, unread = read_calls(sequence.tool_calls)
        shown = _without_end(sequence.tokens, sequence.finish_reason)
        piece = _Piece(sequence.content + unread, sequence.reasoning, calls, self._logprobs(shown))
        return json_reply(200, self._object(piece, sequence.finish_reason))

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        """200, lines of JSON."""
        return Head(NDJSON_MEDIA_TYPE)

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        """A line, b"" while there is nothing to tell."""
        if event.prompt is not None:
            self._prompt_ids = event.prompt.token_ids
        self._num_tokens += len(event.tokens)
        if self._facts.has_context:
            self._token_ids.extend([token.id for token in event.tokens])
        shown = _without_end(event.tokens, event.finish_reason)
        piece = _Piece(event.content, event.reasoning, logprobs=self._logprobs(shown))
        if event.tool_calls or (event.finish_reason is not None and self._calls.is_open):
            ended = self._calls.push(event.tool_calls, is_last=event.finish_reason is not None)
            piece.calls, unread = read_calls(ended, self._calls.num_told - len(ended))
            piece.text += unread
        self._end = event.finish_reason or self._end
        return b"" if piece.is_empty else self._line(piece, None)

    def end(self) -> bytes:
        """The last line: why it ended, counts and durations."""
        return self._line(_Piece(), self._end or FinishReason.ABORT)

    def stream_error(self, error: ServerError) -> bytes:
        """The error as the stream's last line."""
        return jsonline(_ENCODER.encode(OllamaError(error.message)))

    def trailers(self) -> Sequence[tuple[str, str]]:
        """None."""
        return ()

    def _line(self, piece: _Piece, end: FinishReason | None) -> bytes:
        return jsonline(_ENCODER.encode(self._object(piece, end)))

    def _object(self, piece: _Piece, end: FinishReason | None) -> OllamaGenerated | OllamaChatted:
        """One object; with `end` the last one."""
        facts = self._facts
        created_at, thinking = rfc3339(facts.clock.now()), piece.thinking or UNSET
        made: OllamaGenerated | OllamaChatted
        if facts.is_chat:
            message = OllamaAnswerMessage("assistant", piece.text, thinking, piece.calls or UNSET)
            made = OllamaChatted(model=facts.model, created_at=created_at, message=message, done=end is not None)
        else:
            made = OllamaGenerated(
                model=facts.model,
                created_at=created_at,
                response=piece.text,
                thinking=thinking,
                done=end is not None,
            )
        made.logprobs = piece.logprobs
        if end is not None:
            self._finish(made, end)
        return made

    def _finish(self, made: OllamaGenerated | OllamaChatted, end: FinishReason) -> None:
        facts = self._facts
        made.done_reason = _REASONS[end]
        if facts.has_context and isinstance(made, OllamaGenerated):
            made.context = [*self._prompt_ids, *self._token_ids]
        total = nanoseconds(facts.clock.timer() - facts.begin_s)
        timings = None if facts.measure is None else facts.measure()
        prompt = 0 if timings is None else nanoseconds(timings.prompt_ms / 1000)
        predicted = 0 if timings is None else nanoseconds(timings.predicted_ms / 1000)
        made.total_duration, made.load_duration = total, max(0, total - prompt - predicted)
        made.prompt_eval_count, made.prompt_eval_duration = len(self._prompt_ids), prompt
        made.eval_count, made.eval_duration = self._num_tokens, predicted

    def _logprobs(self, tokens: Sequence[TokenOutput]) -> list[OllamaLogprob] | UnsetType:
        if self._facts.top_logprobs is None or not tokens:
            return UNSET
        top_n = self._facts.top_logprobs
        return [_logprob(token, top_n) for token in tokens]


class _OpenCalls:
    """The tool calls of a stream, each sent when it is whole. `num_told`: the number sent so far."""

    def __init__(self) -> None:
        self._open: ToolCall | None = None
        self._arguments: list[str] = []
        self.num_told = 0

    @property
    def is_open(self) -> bool:
        """True if a call has begun and is not sent yet."""
        return self._open is not None

    def push(self, deltas: Sequence[ToolCallDelta], *, is_last: bool) -> list[ToolCall]:
        """The calls that end with these pieces: because another one begins, or nothing follows."""
        ended: list[ToolCall] = []
        for delta in deltas:
            if delta.name is not None:
                ended += self._close()
                self._open = ToolCall(delta.id or "", delta.name, "")
            self._arguments.append(delta.arguments)
        if is_last:
            ended += self._close()
        self.num_told += len(ended)
        return ended

    def _close(self) -> list[ToolCall]:
        call, arguments = self._open, "".join(self._arguments)
        self._open, self._arguments = None, []
        return [] if call is None else [ToolCall(call.id, call.name, arguments)]


def read_calls(calls: Sequence[ToolCall], num_before: int = 0) -> tuple[list[OllamaCall], str]:
    """The calls with their arguments as objects; those whose arguments are none, as the text that the model wrote."""
    told: list[OllamaCall] = []
    unread: list[str] = []
    for call in calls:
        arguments = _object_in(call.arguments)
        if arguments is None:
            unread.append(f"{call.name}({call.arguments})")
        else:
            told.append(OllamaCall(call.id, OllamaCalledFunction(num_before + len(told), call.name, arguments)))
    return told, "\n".join(unread)


def nanoseconds(seconds: float) -> int:
    """A duration as Ollama counts it; none is negative."""
    return max(0, round(seconds * 1e9))


def _object_in(text: str) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(text) if text.strip() else {}
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _without_end(tokens: Sequence[TokenOutput], finish: FinishReason | None) -> Sequence[TokenOutput]:
    """The tokens that are part of the answer: the one that ends it is not."""
    return tokens[:-1] if finish in (FinishReason.EOS, FinishReason.STOP_TOKEN) else tokens


def _logprob(token: TokenOutput, top_n: int) -> OllamaLogprob:
    told = OllamaLogprob(token.token_text, json_logprob(token.logprob), list(token.bytes))
    if top_n:
        told.top_logprobs = [
            OllamaTopLogprob(top.text, json_logprob(top.logprob), list(top.bytes)) for top in token.top[:top_n]
        ]
    return told
