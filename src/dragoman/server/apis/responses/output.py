"""The parts of a response: its items from a whole result, its usage, its end.

Does: the parts that whole answers and streams share. Does not: frame or send. Used by the encoder, on the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import UNSET

from dragoman.errors import ServerError
from dragoman.server.apis.openai_wire.common import Usage, end_of, json_logprob, num_tokens_within
from dragoman.server.apis.responses.items import new_item_id
from dragoman.server.apis.responses.schema import (
    FunctionCallItem,
    InputTokensDetails,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputLogprob,
    OutputText,
    OutputTokensDetails,
    OutputTopLogprob,
    ReasoningItem,
    ReasoningText,
    ResponseFailure,
    ResponseUsage,
    SummaryText,
)
from dragoman.types import FinishReason, SequenceResult, TokenOutput, ToolCall

_CUT_SHORT = (FinishReason.LENGTH, FinishReason.ABORT, FinishReason.REPETITION)


class OutputForm(NamedTuple):
    """The form of items. `top_logprobs` None = no log-probabilities. `has_summary`: reasoning stands in its place."""

    response_id: str
    top_logprobs: int | None = None
    has_summary: bool = False
    has_parallel_calls: bool = True


def is_cut_short(reason: FinishReason | None) -> bool:
    """True if an answer that ended for `reason` is not whole."""
    return reason in _CUT_SHORT


def item_id(kind: str, form: OutputForm, index: int) -> str:
    """The id of the response's item number `index`."""
    return new_item_id(kind, form.response_id, f"o{index}")


def items_of(sequence: SequenceResult, form: OutputForm, first_index: int) -> list[OutputItem]:
    """The items of one answer: reasoning, message (even if empty) and calls. The last may be cut."""
    items: list[OutputItem] = []
    calls = list(sequence.tool_calls) if form.has_parallel_calls else list(sequence.tool_calls[:1])

    def new_id(kind: str) -> str:
        return item_id(kind, form, first_index + len(items))

    if sequence.reasoning:
        items.append(reasoning_item(new_id("reasoning"), sequence.reasoning, form, "completed"))
    if sequence.content or not (calls or items):
        logprobs = [] if form.top_logprobs is None else _content_logprobs(sequence, form.top_logprobs)
        items.append(MessageItem(new_id("message"), "completed", [OutputText(sequence.content, logprobs)]))
    for call in calls:
        items.append(call_item(new_id("function_call"), call, "completed"))
    if is_cut_short(sequence.finish_reason):
        items[-1].status = "incomplete"
    return items


def reasoning_item(own_id: str, text: str, form: OutputForm, status: ItemStatus) -> ReasoningItem:
    """The reasoning; without text when it has just begun."""
    if form.has_summary:
        return ReasoningItem(own_id, status, [SummaryText(text)] if text else [])
    return ReasoningItem(own_id, status, [], [ReasoningText(text)] if text else [])


def call_item(own_id: str, call: ToolCall, status: ItemStatus) -> FunctionCallItem:
    """A call."""
    return FunctionCallItem(own_id, call.id, call.name, call.arguments, status)


def usage_of(counted: Usage, num_reasoning_tokens: int) -> ResponseUsage:
    """The counts in this API's words."""
    details = counted.prompt_tokens_details
    cached = 0 if details is UNSET else details.cached_tokens
    written = 0 if details is UNSET or details.cache_write_tokens is UNSET else details.cache_write_tokens
    return ResponseUsage(
        counted.prompt_tokens,
        InputTokensDetails(cached, written),
        counted.completion_tokens,
        OutputTokensDetails(num_reasoning_tokens),
        counted.total_tokens,
    )


def failure_of(error: ServerError) -> ResponseFailure:
    """An error inside a response, which knows few codes."""
    match error.kind:
        case "overloaded" | "rate_limited" | "unavailable":
            return ResponseFailure("rate_limit_exceeded", error.message)
        case "invalid_request" | "invalid_payload" | "invalid_parameter" | "unsupported" | "capacity":
            return ResponseFailure("invalid_prompt", error.message)
        case _:
            return ResponseFailure("server_error", error.message)


# --- log-probabilities ------------------------------------------------------------------------------------------------


def logprobs_of(tokens: Sequence[TokenOutput], top_n: int) -> list[OutputLogprob]:
    """The tokens' log-probabilities; special tokens, such as the end of sequence, have none."""
    return [
        OutputLogprob(
            token.token_text,
            json_logprob(token.logprob),
            list(token.bytes),
            [OutputTopLogprob(top.text, json_logprob(top.logprob), list(top.bytes)) for top in token.top[:top_n]],
        )
        for token in tokens
        if not token.special
    ]


def first_of_last(tokens: Sequence[TokenOutput], num_chars: int) -> int:
    """Index of the first token of the last `num_chars` characters, including tokens of a partial character before it."""
    first, written = len(tokens), 0
    while first and (written < num_chars or not tokens[first - 1].text):
        first -= 1
        written += len(tokens[first].text)
    return first


def _content_logprobs(sequence: SequenceResult, top_n: int) -> list[OutputLogprob]:
    """Log-probabilities of the answer's tokens, without the reasoning before and the calls after it."""
    tokens = sequence.tokens
    if sequence.reasoning or sequence.tool_calls:
        begin = end_of(sequence.text, sequence.reasoning) or 0 if sequence.reasoning else 0
        found = sequence.text.find(sequence.content, begin)
        if found >= 0:
            first = num_tokens_within(tokens, found)
            tokens = tokens[first : first + num_tokens_within(tokens[first:], len(sequence.content))]
    return logprobs_of(tokens, top_n)
