"""Encodes answers of `/api/generate` and `/api/chat`. On the event loop. Source: Ollama API reference (docs/api.md)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.errors import ServerError
from dragoman.server.api import NDJSON_MEDIA_TYPE, Encoder, Head, IndexedEvent, Reply, json_reply, jsonline
from dragoman.server.apis.ollama.request import OllamaError
from dragoman.server.apis.openai_wire.common import json_logprob
from dragoman.server.observation.record import current_call, current_measure
from dragoman.types import (
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    PromptInfo,
    TokenOutput,
    ToolCall,
    ToolCallDelta,
    joined_calls,
)

Nanoseconds = Annotated[int, Meta(description="nanoseconds")]


Rfc3339 = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


DoneReason = Literal["stop", "length", "load", "unload"]


class OllamaTopLogprob(msgspec.Struct):
    """A candidate."""

    token: str
    logprob: float | None
    bytes: list[int]


class OllamaLogprob(msgspec.Struct):
    """A generated token; `bytes` are its own, however its character was pieced together."""

    token: str
    logprob: float | None
    bytes: list[int]
    top_logprobs: list[OllamaTopLogprob] | UnsetType = UNSET


class OllamaCalledFunction(msgspec.Struct):
    """The function that a tool call names; `index` counts the calls of the answer."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(msgspec.Struct):
    """A tool call of an answer."""

    id: str
    function: OllamaCalledFunction


class OllamaAnswerMessage(msgspec.Struct):
    """The assistant's message, or what a line adds to it."""

    role: str
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaGenerated(msgspec.Struct, kw_only=True):
    """The answer of /api/generate, or one line of it: the last one is `done`, and has how it ended and how long it took.

    `load_duration`: until the first step, which is waiting, and loading the model if the call had to wait for that;
    `prompt_eval_duration`: until the first token, `eval_duration`: from there on. `context`: all tokens, for the next call.
    """

    model: str
    created_at: Rfc3339
    response: str
    thinking: str | UnsetType = UNSET
    done: bool
    done_reason: DoneReason | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET
    total_duration: Nanoseconds | UnsetType = UNSET
    load_duration: Nanoseconds | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: Nanoseconds | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: Nanoseconds | UnsetType = UNSET
    logprobs: list[OllamaLogprob] | UnsetType = UNSET


class OllamaChatted(msgspec.Struct, kw_only=True):
    """The answer of /api/chat, or one line of it, as `OllamaGenerated`."""

    model: str
    created_at: Rfc3339
    message: OllamaAnswerMessage
    done: bool
    done_reason: DoneReason | UnsetType = UNSET
    total_duration: Nanoseconds | UnsetType = UNSET
    load_duration: Nanoseconds | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: Nanoseconds | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: Nanoseconds | UnsetType = UNSET
    logprobs: list[OllamaLogprob] | UnsetType = UNSET


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


CLOCK = Clock(time.time, time.perf_counter)


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def answer_object(
    *,
    is_chat: bool,
    model: str,
    created_s: float,
    done: bool,
    text: str = "",
    thinking: str = "",
    calls: Sequence[OllamaCall] = (),
) -> OllamaGenerated | OllamaChatted:
    """One object of an answer, without the fields of the last one."""
    created_at = rfc3339(created_s)
    if is_chat:
        message = OllamaAnswerMessage("assistant", text, thinking or UNSET, list(calls) or UNSET)
        return OllamaChatted(model=model, created_at=created_at, message=message, done=done)
    return OllamaGenerated(model=model, created_at=created_at, response=text, thinking=thinking or UNSET, done=done)


class OllamaEncoder(Encoder):
    """Writes one answer; a call has one request with one sequence. `has_context`: the last object holds all tokens."""

    def __init__(
        self, model: str, clock: Clock, request: GenerationRequest, *, is_chat: bool, has_context: bool
    ) -> None:
        record = current_call()
        self._model = model
        self._clock = clock
        self._is_chat = is_chat
        self._has_context = has_context
        self._begin_s = clock.timer() if record is None else record.begin_s
        self._measure = current_measure([request.request_id])
        self._top_logprobs = request.sampling.logprobs
        self._deltas: list[ToolCallDelta] = []  # of calls that are not told yet
        self._num_calls = 0  # that were told
        self._prompt_ids: tuple[int, ...] = ()
        self._token_ids: list[int] = []
        self._end = FinishReason.ABORT

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        [result] = results
        [sequence] = result.sequences
        self._count(result.prompt, sequence.tokens)
        calls, unread = read_calls(sequence.tool_calls)
        logprobs = self._logprobs(sequence.tokens, sequence.finish_reason)
        text = sequence.content + unread
        return json_reply(200, self._object(text, sequence.reasoning, calls, logprobs, sequence.finish_reason))

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        return Head(NDJSON_MEDIA_TYPE)

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        self._count(event.prompt, event.tokens)
        self._end = event.finish_reason or self._end
        text, calls = event.content, list[OllamaCall]()
        if event.tool_calls or self._deltas:
            ended = self._ended_calls(event)
            calls, unread = read_calls(ended, self._num_calls)
            self._num_calls += len(ended)
            text += unread
        logprobs = self._logprobs(event.tokens, event.finish_reason)
        if not (text or event.reasoning or calls or logprobs):
            return b""
        return self._line(self._object(text, event.reasoning, calls, logprobs))

    def end(self) -> bytes:
        return self._line(self._object(end=self._end))

    def stream_error(self, error: ServerError) -> bytes:
        return self._line(OllamaError(error.message))

    def _line(self, value: object) -> bytes:
        return jsonline(_ENCODER.encode(value))

    def _ended_calls(self, event: GenerationEvent) -> tuple[ToolCall, ...]:
        """The calls that are whole now, because another one has begun or nothing follows."""
        self._deltas += event.tool_calls
        growing = self._deltas[-1].index if event.finish_reason is None else None
        if self._deltas[0].index == growing:
            return ()
        whole = [delta for delta in self._deltas if delta.index != growing]
        self._deltas = [delta for delta in self._deltas if delta.index == growing]
        return joined_calls(whole)

    def _count(self, prompt: PromptInfo | None, tokens: Sequence[TokenOutput]) -> None:
        if prompt is not None:
            self._prompt_ids = prompt.token_ids
        self._token_ids.extend([token.id for token in tokens])

    def _object(
        self,
        text: str = "",
        thinking: str = "",
        calls: Sequence[OllamaCall] = (),
        logprobs: list[OllamaLogprob] | UnsetType = UNSET,
        end: FinishReason | None = None,
    ) -> OllamaGenerated | OllamaChatted:
        made = answer_object(
            is_chat=self._is_chat,
            model=self._model,
            created_s=self._clock.now(),
            done=end is not None,
            text=text,
            thinking=thinking,
            calls=calls,
        )
        made.logprobs = logprobs
        if end is not None:
            self._finish(made, end)
        return made

    def _finish(self, made: OllamaGenerated | OllamaChatted, end: FinishReason) -> None:
        made.done_reason = _REASONS[end]
        if self._has_context and isinstance(made, OllamaGenerated):
            made.context = [*self._prompt_ids, *self._token_ids]
        total = nanoseconds(self._clock.timer() - self._begin_s)
        timings = None if self._measure is None else self._measure(None)
        prompt = 0 if timings is None else nanoseconds(timings.prompt_ms / 1000)
        predicted = 0 if timings is None else nanoseconds(timings.predicted_ms / 1000)
        made.total_duration, made.load_duration = total, max(0, total - prompt - predicted)
        made.prompt_eval_count, made.prompt_eval_duration = len(self._prompt_ids), prompt
        made.eval_count, made.eval_duration = len(self._token_ids), predicted

    def _logprobs(self, tokens: Sequence[TokenOutput], finish: FinishReason | None) -> list[OllamaLogprob] | UnsetType:
        """Of the tokens that are part of the answer: the one that ends it is not."""
        top_n = self._top_logprobs
        shown = tokens[:-1] if finish in (FinishReason.EOS, FinishReason.STOP_TOKEN) else tokens
        return UNSET if top_n is None or not shown else [_logprob(token, top_n) for token in shown]


def read_calls(calls: Sequence[ToolCall], num_before: int = 0) -> tuple[list[OllamaCall], str]:
    """The calls with objects as arguments; calls with other arguments, as the text that the model wrote."""
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
    return max(0, round(seconds * 1e9))


def _object_in(text: str) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(text) if text.strip() else {}
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _logprob(token: TokenOutput, top_n: int) -> OllamaLogprob:
    entry = OllamaLogprob(token.token_text, json_logprob(token.logprob), list(token.bytes))
    if top_n:
        entry.top_logprobs = [
            OllamaTopLogprob(top.text, json_logprob(top.logprob), list(top.bytes)) for top in token.top[:top_n]
        ]
    return entry
