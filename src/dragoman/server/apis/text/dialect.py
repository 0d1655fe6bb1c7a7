"""The plain-text service: `/api/generate-one` and `/api/generate-batch`, text in and text out, on the event loop.

A status of 200 means ended by itself, 206 cut or still unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from dragoman.errors import InvalidParameter, ServerError
from dragoman.server.api import (
    TEXT_MEDIA_TYPE,
    Call,
    Encoder,
    Head,
    HttpCall,
    IndexedEvent,
    PureDialect,
    Reply,
    json_reply,
)
from dragoman.server.apis.text.schema import BatchAnswerItem, PromptEntry, label_of, parse_batch, parse_one
from dragoman.server.error_kinds import statuses
from dragoman.types import (
    ChatPrompt,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    Limits,
    Prompt,
    SamplingParams,
    TextPrompt,
)

ONE_PATH = "/api/generate-one"
BATCH_PATH = "/api/generate-batch"

COMPLETE = 200  # the text ended with the end-of-sequence token
PARTIAL = 206  # it was cut at maxLength, or it is not known yet how it will end
TRAILER_NAMES = "X-Status, X-Finish-Reason"

ERROR_STATUS = statuses(overloaded=503, engine_dead=500)
"""The body is the reason, as text or in the batch's `{"error"}`."""


class TextError(msgspec.Struct):
    """The body of an error where answers are JSON."""

    error: str


@dataclass(frozen=True, eq=False)
class TextDialect(PureDialect):
    """`hold_ms`: a streamed answer's head waits that long for the outcome, so that short answers have the exact status."""

    hold_ms: int = 200
    chat_template: bool = False  # wrap each prompt as one user turn instead of giving it to the model raw
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.0))
    limits: Limits = field(default_factory=Limits)

    def parse(self, http: HttpCall) -> Call:
        if http.path == BATCH_PATH:
            entries, unknown = parse_batch(http.body, self.limits.max_prompts)
            requests = self._requests(entries, [f"{http.request_id}-{place}" for place in range(len(entries))])
            ignored = (*unknown, *(("stream",) if _wants_stream(http, default=False) else ()))
            labels = tuple(label_of(entry.id) for entry in entries)
            return Call(requests, BatchEncoder(entries), ignored=ignored, labels=labels)
        entries, unknown = parse_one(http.body)
        wants_stream = _wants_stream(http, default=True)
        hold_s = self.hold_ms / 1000 if wants_stream else 0.0
        requests = self._requests(entries, [http.request_id])
        return Call(
            requests, TextEncoder(), stream=wants_stream, ignored=tuple(unknown), hold_s=hold_s, is_head_fixed=False
        )

    def error_reply(self, error: ServerError, http: HttpCall) -> Reply:
        status = ERROR_STATUS[error.kind]
        if http.path == ONE_PATH:
            return Reply(status, _utf8(error.message) + b"\n", TEXT_MEDIA_TYPE)
        return json_reply(status, TextError(error.message))

    def _requests(self, entries: Sequence[PromptEntry], request_ids: Sequence[str]) -> tuple[GenerationRequest, ...]:
        return tuple(
            GenerationRequest(
                request_id=request_id,
                prompt=self._prompt(entry),
                sampling=self.sampling,
                max_tokens=entry.max_length,
                on_overflow="clip",
            )
            for request_id, entry in zip(request_ids, entries, strict=True)
        )

    def _prompt(self, entry: PromptEntry) -> Prompt:
        if self.chat_template:
            return ChatPrompt(messages=({"role": "user", "content": entry.prompt},))
        return TextPrompt(entry.prompt)


class TextEncoder(Encoder):
    def __init__(self) -> None:
        self._finish: FinishReason | None = None

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        sequence = results[0].sequences[0]
        return Reply(_status(sequence.finish_reason), _utf8(sequence.text), TEXT_MEDIA_TYPE)

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        """Status 200 if the text is known to have ended by itself, else 206; the trailers will have the last word."""
        outcome = next((item.event.finish_reason for item in events if item.event.finish_reason is not None), None)
        return Head(TEXT_MEDIA_TYPE, _status(outcome), {"trailer": TRAILER_NAMES})

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        self._finish = event.finish_reason or self._finish
        return _utf8(event.text)

    def stream_error(self, error: ServerError) -> None:
        """No bytes could tell an error from text, so the connection is cut."""
        return

    def trailers(self) -> Sequence[tuple[str, str]]:
        is_complete = self._finish is FinishReason.EOS
        return (("X-Status", str(_status(self._finish))), ("X-Finish-Reason", "eos" if is_complete else "length"))


class BatchEncoder(TextEncoder):
    """The answer of generate-batch: a JSON array in request order, complete or not at all. It is never streamed."""

    def __init__(self, entries: Sequence[PromptEntry]) -> None:
        super().__init__()
        self._entries = entries

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        sequences = [result.sequences[0] for result in results]
        status = max(_status(sequence.finish_reason) for sequence in sequences)
        pairs = zip(self._entries, sequences, strict=True)
        return json_reply(status, [BatchAnswerItem(entry.id, sequence.text) for entry, sequence in pairs])


def _wants_stream(http: HttpCall, *, default: bool) -> bool:
    value = http.query.get("stream")
    if value is None:
        return default
    match value.strip().lower():
        case "true" | "1" | "":
            return True
        case "false" | "0":
            return False
    raise InvalidParameter(f"stream must be true or false, got {value!r}", param="stream")


def _status(finish: FinishReason | None) -> int:
    return COMPLETE if finish is FinishReason.EOS else PARTIAL


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # a lone surrogate has no encoding and must not end the answer
