"""Encodes responses, whole ones and the numbered events of a stream. One encoder per call, on the event loop."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from dragoman.errors import Cancelled, ServerError
from dragoman.server.api import JSON_MEDIA_TYPE, SSE_DONE, SSE_MEDIA_TYPE, Encoder, Head, IndexedEvent, Reply, sse
from dragoman.server.apis.openai_wire.common import UsageCounter, end_of, json_logprob, num_tokens_within
from dragoman.server.apis.openai_wire.errors import OpenAiError
from dragoman.server.apis.responses import schema
from dragoman.server.apis.responses.items import new_item_id
from dragoman.server.apis.responses.request import ResponsesProfile
from dragoman.types import (
    FinishReason,
    GenerationEvent,
    GenerationResult,
    SequenceResult,
    TokenOutput,
    ToolCall,
    ToolCallDelta,
)

_ENCODER = msgspec.json.Encoder()
_NUMBER = 7_003_001  # stands for the number in the bytes that chunks of text have in common

_CUT_SHORT = (FinishReason.LENGTH, FinishReason.ABORT, FinishReason.REPETITION)

MakeEvent = Callable[..., msgspec.Struct]


class _ReasoningEvents(NamedTuple):
    """The events of reasoning; `text` and `part` begin the names of events of the text and its part."""

    text: str
    delta: MakeEvent
    done: MakeEvent
    part: str
    part_event: MakeEvent
    part_text: MakeEvent


_PLAIN_REASONING = _ReasoningEvents(
    "response.reasoning_text",
    schema.ReasoningDelta,
    schema.ReasoningDone,
    "response.content_part",
    schema.PartEvent,
    schema.ReasoningText,
)
_SUMMARY = _ReasoningEvents(
    "response.reasoning_summary_text",
    schema.SummaryDelta,
    schema.SummaryDone,
    "response.reasoning_summary_part",
    schema.SummaryPartEvent,
    schema.SummaryText,
)


@dataclass(slots=True)
class _OpenItem:
    """The item that grows. `call_index`: of a call, the number that its pieces have."""

    item: schema.OutputItem
    index: int
    texts: list[str] = field(default_factory=list)
    logprobs: list[schema.OutputLogprob] = field(default_factory=list)
    call_index: int = -1

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def place(self) -> tuple[str, int]:
        return self.item.id, self.index


class ResponseEncoder(Encoder):
    """Implements `Encoder`; a stream has one answer, a whole response may have several."""

    def __init__(
        self,
        response: schema.Response,
        profile: ResponsesProfile,
        top_logprobs: int | None,
        clock: Callable[[], float],
        ended: Callable[[schema.Response], None],
    ) -> None:
        """`response`: as it begins; `ended` is called with it when it has ended. `top_logprobs` None: tell none.

        `clock`: Unix time in seconds.
        """
        self._response = response
        self._profile = profile
        self._top_logprobs = top_logprobs
        self._has_summary = profile.has_summary or response.reasoning.summary is not None
        self._clock = clock
        self._when_ended = ended
        self._reasoning = _SUMMARY if self._has_summary else _PLAIN_REASONING
        self._usage = UsageCounter(has_details=True, has_reasoning=True)
        self._num_events = 0
        self._pieces: list[bytes] = []  # events that are not sent yet
        self._items: list[schema.OutputItem] = []
        self._open: _OpenItem | None = None
        self._pending: list[TokenOutput] = []  # tokens that are not shown yet
        self._cut_by: FinishReason | None = None
        self._text_chunk: tuple[bytes, bytes, bytes] | None = None  # around number and text, of the open message

    # --- whole --------------------------------------------------------------------------------------------------------

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        [result] = results
        items: list[schema.OutputItem] = []
        for sequence in result.sequences:
            items += self._items_of(sequence, len(items))
        cuts = (sequence.finish_reason for sequence in result.sequences if is_cut_short(sequence.finish_reason))
        self._usage.of(results)
        response = self._ended(items, next(cuts, None))
        return Reply(200, _ENCODER.encode(response), JSON_MEDIA_TYPE)

    def _ended(self, items: list[schema.OutputItem], cut_by: FinishReason | None) -> schema.Response:
        details = None
        if cut_by is not None:
            reason = "repetition" if cut_by is FinishReason.REPETITION else self._profile.too_long
            details = schema.IncompleteDetails(reason)
        response = msgspec.structs.replace(
            self._response,
            status="incomplete" if cut_by else "completed",
            completed_at=None if cut_by else int(self._clock()),
            incomplete_details=details,
            output=items,
            usage=usage_of(self._usage),
        )
        self._when_ended(response)
        return response

    def _items_of(self, sequence: SequenceResult, first_index: int) -> list[schema.OutputItem]:
        """The items of one whole answer: reasoning, message (even if empty) and calls. The last may be cut."""
        items: list[schema.OutputItem] = []
        calls = sequence.tool_calls if self._response.parallel_tool_calls else sequence.tool_calls[:1]

        def new_id(kind: str) -> str:
            return self._item_id(kind, first_index + len(items))

        if sequence.reasoning:
            items.append(self._reasoning_item(new_id("reasoning"), sequence.reasoning, "completed"))
        if sequence.content or not (calls or items):
            logprobs = [] if self._top_logprobs is None else _content_logprobs(sequence, self._top_logprobs)
            items.append(
                schema.MessageItem(new_id("message"), "completed", [schema.OutputText(sequence.content, logprobs)])
            )
        for call in calls:
            items.append(call_item(new_id("function_call"), call, "completed"))
        if is_cut_short(sequence.finish_reason):
            items[-1].status = "incomplete"
        return items

    def _item_id(self, kind: str, index: int) -> str:
        return new_item_id(kind, self._response.id, f"o{index}")

    def _reasoning_item(self, item_id: str, text: str, status: schema.ItemStatus) -> schema.ReasoningItem:
        if self._has_summary:
            return schema.ReasoningItem(item_id, status, [schema.SummaryText(text)] if text else [])
        return schema.ReasoningItem(item_id, status, [], [schema.ReasoningText(text)] if text else [])

    # --- streams ------------------------------------------------------------------------------------------------------

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        return Head(SSE_MEDIA_TYPE)

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        """Runs once per step and sequence, so it stays cheap; b"" while there is nothing to tell."""
        self._usage.add(event)
        if self._text_chunk is not None and self._is_text_only(event):
            return self._more_text(event.content, self._text_chunk)
        self._begin()
        if self._top_logprobs is not None:
            self._pending += event.tokens
        if event.reasoning:
            self._add_reasoning(event.reasoning)
        if event.content:
            self._add_text(event.content)
        for delta in event.tool_calls:
            if self._response.parallel_tool_calls or delta.index == 0:
                self._add_call(delta)
        if event.finish_reason is not None:
            self._cut_by = event.finish_reason if is_cut_short(event.finish_reason) else None
        return self._taken()

    def end(self) -> bytes:
        self._begin()
        if self._open is None and not self._items:
            self._open_message()
        status: schema.ItemStatus = "incomplete" if self._cut_by else "completed"
        self._close(status)
        response = self._ended(self._items, self._cut_by)
        self._tell(f"response.{status}", schema.ResponseEvent, response)
        return self._taken() + self._mark()

    def stream_error(self, error: ServerError) -> bytes:
        self._begin()
        body = self._profile.wire.errors.body(error)
        code = body.error.code if isinstance(body, OpenAiError) else None
        self._tell("error", schema.ErrorEvent, code or "server_error", error.message, error.param)
        response = msgspec.structs.replace(
            self._response,
            status="cancelled" if isinstance(error, Cancelled) else "failed",
            error=failure_of(error),
            output=[*self._items, *([] if self._open is None else [self._item(self._open, "incomplete")])],
            usage=usage_of(self._usage),
        )
        self._when_ended(response)
        self._tell("response.failed", schema.ResponseEvent, response)
        return self._taken() + self._mark()

    # --- what there is only more of -----------------------------------------------------------------------------------

    def _is_text_only(self, event: GenerationEvent) -> bool:
        """True if the open message grows, and nothing else happens; nearly always so."""
        return (
            event.content != ""
            and self._top_logprobs is None
            and event.finish_reason is None
            and not (event.reasoning or event.tool_calls)
        )

    def _more_text(self, text: str, chunk: tuple[bytes, bytes, bytes]) -> bytes:
        assert self._open is not None
        self._open.texts.append(text)
        before, between, after = chunk
        return b"%b%d%b%b%b" % (before, self._number(), between, _ENCODER.encode(text), after)

    def _chunk_of(self, opened: _OpenItem) -> tuple[bytes, bytes, bytes]:
        """The bytes around the number and the text of a piece of the message."""
        placeholder = secrets.token_hex(16)
        kind: Final = "response.output_text.delta"
        framed = self._framed(kind, schema.OutputTextDelta(kind, _NUMBER, *opened.place, 0, placeholder, []))
        before, rest = framed.split(str(_NUMBER).encode(), 1)
        between, after = rest.split(_ENCODER.encode(placeholder))
        return before, between, after

    # --- items --------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._num_events == 0:
            self._tell("response.created", schema.ResponseEvent, self._response)
            self._tell("response.in_progress", schema.ResponseEvent, self._response)

    def _add_reasoning(self, text: str) -> None:
        opened, events = self._open, self._reasoning
        if opened is None or not isinstance(opened.item, schema.ReasoningItem):
            opened = self._open_item("reasoning", lambda item_id: self._reasoning_item(item_id, "", "in_progress"))
            self._tell(f"{events.part}.added", events.part_event, *opened.place, 0, events.part_text(""))
        opened.texts.append(text)
        self._pending.clear()
        self._tell(f"{events.text}.delta", events.delta, *opened.place, 0, text)

    def _add_text(self, text: str) -> None:
        opened = self._open
        if opened is None or not isinstance(opened.item, schema.MessageItem):
            opened = self._open_message()
        opened.texts.append(text)
        logprobs = self._take_logprobs(len(text))
        opened.logprobs += logprobs
        self._tell("response.output_text.delta", schema.OutputTextDelta, *opened.place, 0, text, logprobs)

    def _open_message(self) -> _OpenItem:
        opened = self._open_item("message", lambda item_id: schema.MessageItem(item_id, "in_progress", []))
        self._tell("response.content_part.added", schema.PartEvent, *opened.place, 0, schema.OutputText(""))
        self._text_chunk = self._chunk_of(opened)
        return opened

    def _add_call(self, delta: ToolCallDelta) -> None:
        opened = self._open
        if opened is None or opened.call_index != delta.index:
            call = ToolCall(delta.id or "", delta.name or "", "")
            opened = self._open_item("function_call", lambda item_id: call_item(item_id, call, "in_progress"))
            opened.call_index = delta.index
        self._pending.clear()
        if delta.arguments:
            opened.texts.append(delta.arguments)
            kind = "response.function_call_arguments.delta"
            self._tell(kind, schema.ArgumentsDelta, *opened.place, delta.arguments)

    def _open_item(self, kind: str, make: Callable[[str], schema.OutputItem]) -> _OpenItem:
        self._close("completed")
        index = len(self._items)
        self._open = _OpenItem(make(self._item_id(kind, index)), index)
        self._tell("response.output_item.added", schema.ItemEvent, index, self._open.item)
        return self._open

    def _close(self, status: schema.ItemStatus) -> None:
        opened = self._open
        if opened is None:
            return
        place, text = opened.place, opened.text
        match opened.item:
            case schema.MessageItem():
                self._tell("response.output_text.done", schema.OutputTextDone, *place, 0, text, opened.logprobs)
                part = schema.OutputText(text, opened.logprobs)
                self._tell("response.content_part.done", schema.PartEvent, *place, 0, part)
            case schema.FunctionCallItem(name=name):
                self._tell("response.function_call_arguments.done", schema.ArgumentsDone, *place, name, text)
            case schema.ReasoningItem():
                events = self._reasoning
                self._tell(f"{events.text}.done", events.done, *place, 0, text)
                self._tell(f"{events.part}.done", events.part_event, *place, 0, events.part_text(text))
        item = self._item(opened, status)
        self._items.append(item)
        self._open = self._text_chunk = None
        self._tell("response.output_item.done", schema.ItemEvent, opened.index, item)

    def _item(self, opened: _OpenItem, status: schema.ItemStatus) -> schema.OutputItem:
        match opened.item:
            case schema.MessageItem(id=item_id):
                return schema.MessageItem(item_id, status, [schema.OutputText(opened.text, opened.logprobs)])
            case schema.FunctionCallItem(id=item_id) as call:
                return call_item(item_id, ToolCall(call.call_id, call.name, opened.text), status)
            case schema.ReasoningItem(id=item_id):
                return self._reasoning_item(item_id, opened.text, status)

    def _take_logprobs(self, num_chars: int) -> list[schema.OutputLogprob]:
        """Log-probabilities of the last `num_chars` characters; the tokens before were the model's markup."""
        if self._top_logprobs is None:
            return []
        first = first_of_last(self._pending, num_chars)
        logprobs = logprobs_of(self._pending[first:], self._top_logprobs)
        self._pending.clear()
        return logprobs

    # --- framing ------------------------------------------------------------------------------------------------------

    def _tell(self, kind: str, make: MakeEvent, *fields: object) -> None:
        self._pieces.append(self._framed(kind, make(kind, self._number(), *fields)))

    def _number(self) -> int:
        number, self._num_events = self._num_events, self._num_events + 1
        return number

    def _taken(self) -> bytes:
        pieces, self._pieces = b"".join(self._pieces), []
        return pieces

    def _framed(self, kind: str, event: msgspec.Struct) -> bytes:
        data = sse(_ENCODER.encode(event))
        return data if self._profile.ends_with_done else b"event: %b\n%b" % (kind.encode(), data)

    def _mark(self) -> bytes:
        return SSE_DONE if self._profile.ends_with_done else b""


def is_cut_short(reason: FinishReason | None) -> bool:
    return reason in _CUT_SHORT


def call_item(item_id: str, call: ToolCall, status: schema.ItemStatus) -> schema.FunctionCallItem:
    return schema.FunctionCallItem(item_id, call.id, call.name, call.arguments, status)


def usage_of(counter: UsageCounter) -> schema.ResponseUsage:
    return schema.ResponseUsage(
        counter.num_prompt_tokens,
        schema.InputTokensDetails(counter.num_cached_tokens, counter.num_written_tokens),
        counter.num_completion_tokens,
        schema.OutputTokensDetails(counter.num_reasoning_tokens),
        counter.num_prompt_tokens + counter.num_completion_tokens,
    )


def failure_of(error: ServerError) -> schema.ResponseFailure:
    match error.kind:
        case "overloaded" | "rate_limited" | "unavailable":
            return schema.ResponseFailure("rate_limit_exceeded", error.message)
        case "invalid_request" | "invalid_payload" | "invalid_parameter" | "unsupported" | "capacity":
            return schema.ResponseFailure("invalid_prompt", error.message)
        case _:
            return schema.ResponseFailure("server_error", error.message)


# --- log-probabilities ------------------------------------------------------------------------------------------------


def logprobs_of(tokens: Sequence[TokenOutput], top_n: int) -> list[schema.OutputLogprob]:
    """The tokens' log-probabilities; special tokens, such as the end of sequence, have none."""
    return [
        schema.OutputLogprob(
            token.token_text,
            json_logprob(token.logprob),
            list(token.bytes),
            [
                schema.OutputTopLogprob(top.text, json_logprob(top.logprob), list(top.bytes))
                for top in token.top[:top_n]
            ],
        )
        for token in tokens
        if not token.special
    ]


def first_of_last(tokens: Sequence[TokenOutput], num_chars: int) -> int:
    """The index where the last `num_chars` characters begin, with tokens of a partial character before them."""
    first, written = len(tokens), 0
    while first and (written < num_chars or not tokens[first - 1].text):
        first -= 1
        written += len(tokens[first].text)
    return first


def _content_logprobs(sequence: SequenceResult, top_n: int) -> list[schema.OutputLogprob]:
    """Log-probabilities of the answer's tokens, without the reasoning before and the calls after it."""
    tokens = sequence.tokens
    if sequence.reasoning or sequence.tool_calls:
        begin = end_of(sequence.text, sequence.reasoning) or 0 if sequence.reasoning else 0
        found = sequence.text.find(sequence.content, begin)
        if found >= 0:
            first = num_tokens_within(tokens, found)
            tokens = tokens[first : first + num_tokens_within(tokens[first:], len(sequence.content))]
    return logprobs_of(tokens, top_n)
