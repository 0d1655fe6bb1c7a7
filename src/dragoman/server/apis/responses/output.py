"""The parts of a response: its items, its usage, its failure.

Does: the parts that whole answers and streams share. Does not: frame or send. Used by the encoder, on the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import UNSET

from dragoman.errors import ServerError
from dragoman.server.apis.openai_wire.common import Usage, end_of, json_logprob, num_tokens_within
from dragoman.server.apis.responses.items import new_item_id
from dragoman.server.apis.responses.profiles import ResponsesProfile
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
    Response,
    ResponseFailure,
    ResponseUsage,
    SummaryText,
)
from dragoman.types import FinishReason, SequenceResult, TokenOutput, ToolCall

_CUT_SHORT = (FinishReason.LENGTH, FinishReason.ABORT, FinishReason.REPETITION)


class OutputForm(NamedTuple):
    """The form of an answer. `response`: as it begins. `top_logprobs` None = no log-probabilities."""

    response: Response
    profile: ResponsesProfile
    top_logprobs: int | None

    @property
    def has_summary(self) -> bool:
        """True if reasoning stands in the summary's place."""
        return self.profile.has_summary or self.response.reasoning.summary is not None

    def item_id(self, kind: str, index: int) -> str:
        """The id of the response's item number `index`."""
        return new_item_id(kind, self.response.id, f"o{index}")

    def reasoning(self, item_id: str, text: str, status: ItemStatus) -> ReasoningItem:
        """The reasoning; without text when it has just begun."""
        if self.has_summary:
            return ReasoningItem(item_id, status, [SummaryText(text)] if text else [])
        return ReasoningItem(item_id, status, [], [ReasoningText(text)] if text else [])

    def items_of(self, sequence: SequenceResult, first_index: int) -> list[OutputItem]:
        """The items of one whole answer: reasoning, message (even if empty) and calls. The last may be cut."""
        items: list[OutputItem] = []
        calls = sequence.tool_calls if self.response.parallel_tool_calls else sequence.tool_calls[:1]

        def new_id(kind: str) -> str:
            return self.item_id(kind, first_index + len(items))

        if sequence.reasoning:
            items.append(self.reasoning(new_id("reasoning"), sequence.reasoning, "completed"))
        if sequence.content or not (calls or items):
            logprobs = [] if self.top_logprobs is None else _content_logprobs(sequence, self.top_logprobs)
            items.append(MessageItem(new_id("message"), "completed", [OutputText(sequence.content, logprobs)]))
        for call in calls:
            items.append(call_item(new_id("function_call"), call, "completed"))
        if is_cut_short(sequence.finish_reason):
            items[-1].status = "incomplete"
        return items


def is_cut_short(reason: FinishReason | None) -> bool:
    """True if an answer that ended for `reason` is not whole."""
    return reason in _CUT_SHORT


def call_item(item_id: str, call: ToolCall, status: ItemStatus) -> FunctionCallItem:
    """A call."""
    return FunctionCallItem(item_id, call.id, call.name, call.arguments, status)


def usage_of(counted: Usage) -> ResponseUsage:
    """The counts in this API's words; `counted` has all details."""
    cached, reasoning = counted.prompt_tokens_details, counted.completion_tokens_details
    assert cached is not UNSET
    assert reasoning is not UNSET
    written = 0 if cached.cache_write_tokens is UNSET else cached.cache_write_tokens
    return ResponseUsage(
        counted.prompt_tokens,
        InputTokensDetails(cached.cached_tokens, written),
        counted.completion_tokens,
        OutputTokensDetails(reasoning.reasoning_tokens),
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
