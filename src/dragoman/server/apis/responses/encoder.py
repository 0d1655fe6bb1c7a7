"""Encodes responses: whole ones, and the events of a stream with their numbers.

Does: everything that is shown while and when a response is made; says when it has ended. Does not: parse or keep anything.
One encoder per call, on the event loop; `event` runs once per step, so it stays cheap where there is only more text.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from dragoman.errors import Cancelled, ServerError
from dragoman.server.api import JSON_MEDIA_TYPE, SSE_DONE, SSE_MEDIA_TYPE, Head, IndexedEvent, Reply, sse
from dragoman.server.apis.openai_wire.common import ReasoningCounter, UsageCounter, num_reasoning_tokens
from dragoman.server.apis.openai_wire.common import usage_of as counted_usage
from dragoman.server.apis.openai_wire.errors import ErrorShape, OpenAiError
from dragoman.server.apis.responses import schema
from dragoman.server.apis.responses.output import (
    OutputForm,
    call_item,
    failure_of,
    first_of_last,
    is_cut_short,
    item_id,
    items_of,
    logprobs_of,
    reasoning_item,
    usage_of,
)
from dragoman.server.apis.responses.schema import (
    FunctionCallItem,
    IncompleteDetails,
    MessageItem,
    OutputItem,
    OutputLogprob,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Response,
    ResponseUsage,
    SummaryText,
)
from dragoman.types import FinishReason, GenerationEvent, GenerationResult, TokenOutput, ToolCall, ToolCallDelta

_ENCODER = msgspec.json.Encoder()
_REPEATED = IncompleteDetails("repetition")
_NUMBER = 7_003_001  # stands for the number in the bytes that chunks of text have in common

Ended = Callable[[Response], None]


@dataclass(frozen=True, slots=True)
class ResponseFacts:
    """Facts about a call that the encoder needs.

    `response`: as it begins. `ended` is called when it ends. `ends_with_done`: OpenVINO Model Server's framing.
    """

    response: Response
    form: OutputForm
    errors: ErrorShape
    clock: Callable[[], float]
    ended: Ended
    too_long: IncompleteDetails
    ends_with_done: bool = False


@dataclass(slots=True)
class _OpenItem:
    """The item that grows. `call_index`: of a call, the number that its pieces have."""

    item: OutputItem
    index: int
    texts: list[str] = field(default_factory=list)
    logprobs: list[OutputLogprob] = field(default_factory=list)
    call_index: int = -1

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.texts)


class ResponseEncoder:
    """Implements `Encoder`; a stream has one answer, a whole response may have several."""

    def __init__(self, facts: ResponseFacts) -> None:
        self._facts = facts
        self._form = facts.form
        self._usage = UsageCounter(has_details=True)
        self._num_events = 0
        self._has_begun = False
        self._items: list[OutputItem] = []
        self._open: _OpenItem | None = None
        self._pending: list[TokenOutput] = []  # tokens that are not shown yet
        self._reasoning_counter = ReasoningCounter()
        self._cut_by: FinishReason | None = None
        self._text_chunk: tuple[bytes, bytes, bytes] | None = None  # around number and text, of the open message

    # --- whole --------------------------------------------------------------------------------------------------------

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        """The response."""
        [result] = results
        items: list[OutputItem] = []
        for sequence in result.sequences:
            items += items_of(sequence, self._form, len(items))
        usage = usage_of(
            counted_usage(results, has_details=True), sum(num_reasoning_tokens(one) for one in result.sequences)
        )
        cuts = (sequence.finish_reason for sequence in result.sequences if is_cut_short(sequence.finish_reason))
        response = self._ended(items, usage, next(cuts, None))
        return Reply(200, _ENCODER.encode(response), JSON_MEDIA_TYPE)

    def _ended(self, items: list[OutputItem], usage: ResponseUsage, cut_by: FinishReason | None) -> Response:
        facts = self._facts
        response = msgspec.structs.replace(
            facts.response,
            status="incomplete" if cut_by else "completed",
            completed_at=None if cut_by else int(facts.clock()),
            incomplete_details=None
            if cut_by is None
            else _REPEATED
            if cut_by is FinishReason.REPETITION
            else facts.too_long,
            output=items,
            usage=usage,
        )
        facts.ended(response)
        return response

    # --- streams ------------------------------------------------------------------------------------------------------

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        """Server-sent events."""
        return Head(SSE_MEDIA_TYPE)

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        """The events that one step makes; b"" for none."""
        self._usage.add(event.prompt, len(event.tokens), event.num_cached_tokens)
        self._reasoning_counter.add(event)
        if self._text_chunk is not None and self._is_text_only(event):
            return self._more_text(event.content, self._text_chunk)
        pieces = self._begin()
        if self._form.top_logprobs is not None:
            self._pending += event.tokens
        if event.reasoning:
            pieces += self._add_reasoning(event.reasoning)
        if event.content:
            pieces += self._add_text(event.content)
        for delta in event.tool_calls:
            if self._form.has_parallel_calls or delta.index == 0:
                pieces += self._add_call(delta)
        if event.finish_reason is not None:
            self._cut_by = event.finish_reason if is_cut_short(event.finish_reason) else None
        return b"".join(pieces)

    def end(self) -> bytes:
        """The ends of what is open, and of the response."""
        pieces = self._begin()
        if self._open is None and not self._items:
            pieces += self._open_message()
        pieces += self._close("incomplete" if self._cut_by else "completed")
        usage = usage_of(self._usage.usage(), self._reasoning_counter.num_tokens)
        response = self._ended(self._items, usage, self._cut_by)
        kind = "response.incomplete" if self._cut_by else "response.completed"
        pieces.append(self._frame(schema.ResponseEvent(kind, self._number(), response)))  # type: ignore[arg-type]
        return b"".join(pieces) + self._mark()

    def stream_error(self, error: ServerError) -> bytes:
        """The error, and the response as it failed."""
        facts = self._facts
        pieces = self._begin()
        told = facts.errors.body(error)
        code = told.error.code if isinstance(told, OpenAiError) else None
        event = schema.ErrorEvent("error", self._number(), code or "server_error", error.message, error.param)
        response = msgspec.structs.replace(
            facts.response,
            status="cancelled" if isinstance(error, Cancelled) else "failed",
            error=failure_of(error),
            output=[*self._items, *([] if self._open is None else [self._item("incomplete")])],
            usage=usage_of(self._usage.usage(), self._reasoning_counter.num_tokens),
        )
        facts.ended(response)
        pieces.append(self._frame(event))
        pieces.append(self._frame(schema.ResponseEvent("response.failed", self._number(), response)))
        return b"".join(pieces) + self._mark()

    def trailers(self) -> Sequence[tuple[str, str]]:
        """None."""
        return ()

    # --- what there is only more of -----------------------------------------------------------------------------------

    def _is_text_only(self, event: GenerationEvent) -> bool:
        """True if the open message grows, and nothing else happens; nearly always so."""
        return (
            event.content != ""
            and self._form.top_logprobs is None
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
        delta = schema.OutputTextDelta(
            "response.output_text.delta", _NUMBER, opened.item.id, opened.index, 0, placeholder, []
        )
        before, rest = self._frame(delta).split(str(_NUMBER).encode(), 1)
        between, after = rest.split(_ENCODER.encode(placeholder))
        return before, between, after

    # --- items --------------------------------------------------------------------------------------------------------

    def _begin(self) -> list[bytes]:
        if self._has_begun:
            return []
        self._has_begun = True
        response = self._facts.response
        return [
            self._frame(schema.ResponseEvent("response.created", self._number(), response)),
            self._frame(schema.ResponseEvent("response.in_progress", self._number(), response)),
        ]

    def _add_reasoning(self, text: str) -> list[bytes]:
        pieces: list[bytes] = []
        opened = self._open
        if opened is None or not isinstance(opened.item, ReasoningItem):
            pieces += self._close("completed")
            opened = self._new_item(reasoning_item(self._id("reasoning"), "", self._form, "in_progress"), pieces)
            pieces.append(self._reasoning_part("added", opened, ""))
        opened.texts.append(text)
        self._pending.clear()
        own_id, index = opened.item.id, opened.index
        if self._form.has_summary:
            kind = "response.reasoning_summary_text.delta"
            pieces.append(self._frame(schema.SummaryDelta(kind, self._number(), own_id, index, 0, text)))  # type: ignore[arg-type]
        else:
            delta = schema.ReasoningDelta("response.reasoning_text.delta", self._number(), own_id, index, 0, text)
            pieces.append(self._frame(delta))
        return pieces

    def _add_text(self, text: str) -> list[bytes]:
        pieces: list[bytes] = []
        if self._open is None or not isinstance(self._open.item, MessageItem):
            pieces += self._close("completed")
            pieces += self._open_message()
        opened = self._open
        assert opened is not None
        opened.texts.append(text)
        logprobs = self._take_logprobs(len(text))
        opened.logprobs += logprobs
        delta = schema.OutputTextDelta(
            "response.output_text.delta", self._number(), opened.item.id, opened.index, 0, text, logprobs
        )
        pieces.append(self._frame(delta))
        return pieces

    def _open_message(self) -> list[bytes]:
        pieces: list[bytes] = []
        opened = self._new_item(MessageItem(self._id("message"), "in_progress", []), pieces)
        part = schema.PartEvent(
            "response.content_part.added", self._number(), opened.item.id, opened.index, 0, OutputText("")
        )
        pieces.append(self._frame(part))
        self._text_chunk = self._chunk_of(opened)
        return pieces

    def _add_call(self, delta: ToolCallDelta) -> list[bytes]:
        pieces: list[bytes] = []
        opened = self._open
        if opened is None or opened.call_index != delta.index:
            pieces += self._close("completed")
            call = ToolCall(delta.id or "", delta.name or "", "")
            opened = self._new_item(call_item(self._id("function_call"), call, "in_progress"), pieces)
            opened.call_index = delta.index
        self._pending.clear()
        if delta.arguments:
            opened.texts.append(delta.arguments)
            kind = "response.function_call_arguments.delta"
            more = schema.ArgumentsDelta(kind, self._number(), opened.item.id, opened.index, delta.arguments)  # type: ignore[arg-type]
            pieces.append(self._frame(more))
        return pieces

    def _new_item(self, item: OutputItem, pieces: list[bytes]) -> _OpenItem:
        """Begin an item. Mutates: `pieces`."""
        self._open = _OpenItem(item, len(self._items))
        pieces.append(
            self._frame(schema.ItemEvent("response.output_item.added", self._number(), self._open.index, item))
        )
        return self._open

    def _close(self, status: schema.ItemStatus) -> list[bytes]:
        """End the open item, if there is one."""
        opened = self._open
        if opened is None:
            return []
        pieces = self._done_of(opened)
        item = self._item(status)
        self._items.append(item)
        self._open = self._text_chunk = None
        pieces.append(self._frame(schema.ItemEvent("response.output_item.done", self._number(), opened.index, item)))
        return pieces

    def _done_of(self, opened: _OpenItem) -> list[bytes]:
        """The events that end an item's content, before the item's own end."""
        own_id, index, text = opened.item.id, opened.index, opened.text
        match opened.item:
            case MessageItem():
                done = schema.OutputTextDone(
                    "response.output_text.done", self._number(), own_id, index, 0, text, opened.logprobs
                )
                part = OutputText(text, opened.logprobs)
                ended = schema.PartEvent("response.content_part.done", 0, own_id, index, 0, part)
                pieces = [self._frame(done)]
                ended.sequence_number = self._number()
                return [*pieces, self._frame(ended)]
            case FunctionCallItem(name=name):
                kind = "response.function_call_arguments.done"
                return [self._frame(schema.ArgumentsDone(kind, self._number(), own_id, index, name, text))]  # type: ignore[arg-type]
            case _ if self._form.has_summary:
                kind = "response.reasoning_summary_text.done"
                summary = schema.SummaryDone(kind, self._number(), own_id, index, 0, text)  # type: ignore[arg-type]
                return [self._frame(summary), self._reasoning_part("done", opened, text)]
            case _:
                whole = schema.ReasoningDone("response.reasoning_text.done", self._number(), own_id, index, 0, text)
                return [self._frame(whole), self._reasoning_part("done", opened, text)]

    def _reasoning_part(self, which: str, opened: _OpenItem, text: str) -> bytes:
        own_id, index, number = opened.item.id, opened.index, self._number()
        if self._form.has_summary:
            kind = f"response.reasoning_summary_part.{which}"
            return self._frame(schema.SummaryPartEvent(kind, number, own_id, index, 0, SummaryText(text)))  # type: ignore[arg-type]
        kind = f"response.content_part.{which}"
        return self._frame(schema.PartEvent(kind, number, own_id, index, 0, ReasoningText(text)))  # type: ignore[arg-type]

    def _item(self, status: schema.ItemStatus) -> OutputItem:
        """The open item as it is now."""
        opened = self._open
        assert opened is not None
        match opened.item:
            case MessageItem(id=own_id):
                return MessageItem(own_id, status, [OutputText(opened.text, opened.logprobs)])
            case FunctionCallItem(id=own_id) as call:
                return call_item(own_id, ToolCall(call.call_id, call.name, opened.text), status)
            case other:
                return reasoning_item(other.id, opened.text, self._form, status)

    # --- small things -------------------------------------------------------------------------------------------------

    def _id(self, kind: str) -> str:
        return item_id(kind, self._form, len(self._items))

    def _number(self) -> int:
        number, self._num_events = self._num_events, self._num_events + 1
        return number

    def _take_logprobs(self, num_chars: int) -> list[OutputLogprob]:
        """Log-probabilities of the last tokens, which wrote `num_chars` characters; those before were the model's markup."""
        if self._form.top_logprobs is None:
            return []
        first = first_of_last(self._pending, num_chars)
        logprobs = logprobs_of(self._pending[first:], self._form.top_logprobs)
        self._pending.clear()
        return logprobs

    def _frame(self, event: msgspec.Struct) -> bytes:
        data = sse(_ENCODER.encode(event))
        if self._facts.ends_with_done:
            return data
        kind: str = event.type  # type: ignore[attr-defined]
        return b"event: %b\n%b" % (kind.encode(), data)

    def _mark(self) -> bytes:
        return SSE_DONE if self._facts.ends_with_done else b""
