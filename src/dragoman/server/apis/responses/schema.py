"""Responses as they are answered, and the events of streams.

Sources: OpenAI API reference, responses; OVMS 2026.2, responses endpoint.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.server.apis.openai_wire.common import Created
from dragoman.server.apis.openai_wire.keeping import PromptCacheOptions

# --- what is answered -------------------------------------------------------------------------------------------------

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class OutputTopLogprob(msgspec.Struct):
    """A candidate."""

    token: str
    logprob: float | None
    bytes: list[int]


class OutputLogprob(msgspec.Struct):
    """A generated token; `bytes` are its own."""

    token: str
    logprob: float | None
    bytes: list[int]
    top_logprobs: list[OutputTopLogprob]


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """The text of a message."""

    text: str
    logprobs: list[OutputLogprob] = []
    annotations: list[Any] = []


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """The reasoning itself."""

    text: str


class SummaryText(msgspec.Struct, tag_field="type", tag="summary_text"):
    """Reasoning where it stands in the summary's place."""

    text: str


class MessageItem(msgspec.Struct, tag_field="type", tag="message"):
    """A message of the model."""

    id: str
    status: ItemStatus
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    """A function that the model calls; `arguments` is the JSON text as generated."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    """The model's reasoning before its answer."""

    id: str
    status: ItemStatus
    summary: list[SummaryText]
    content: list[ReasoningText] | UnsetType = UNSET
    encrypted_content: None = None


OutputItem = MessageItem | FunctionCallItem | ReasoningItem


class InputTokensDetails(msgspec.Struct):
    """`cached_tokens` were found in the prefix cache, `cache_write_tokens` are kept there since this request asked so."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    """`reasoning_tokens`: of the output, those before the answer."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseFailure(msgspec.Struct):
    """Why there is no answer, inside a response."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(msgspec.Struct):
    """Why the answer ends early: "max_output_tokens", which OpenVINO Model Server calls "max_tokens", or "repetition"."""

    reason: Literal["max_output_tokens", "max_tokens", "repetition"]


class ToldReasoning(msgspec.Struct):
    """`reasoning` as it was asked for."""

    effort: str | None = None
    summary: str | None = None


class ToldFormat(msgspec.Struct, omit_defaults=True):
    """`text.format` as it was asked for; that of a JSON schema always tells `description` and `strict`."""

    type: str
    name: str | UnsetType = UNSET
    description: str | UnsetType | None = UNSET
    schema: dict[str, Any] | bool | UnsetType = UNSET
    strict: bool | UnsetType = UNSET


class ToldText(msgspec.Struct):
    """`text` as it was asked for."""

    format: ToldFormat
    verbosity: str | UnsetType = UNSET


class Response(msgspec.Struct, kw_only=True):
    """A response, as far as it is."""

    id: str
    object: Literal["response"] = "response"
    created_at: Created
    status: ResponseStatus
    completed_at: int | None = None
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | UnsetType = UNSET
    prompt_cache_options: PromptCacheOptions | UnsetType = UNSET
    reasoning: ToldReasoning
    safety_identifier: str | None = None
    service_tier: Literal["default"] = "default"
    store: bool = True
    background: bool = False
    temperature: float | None = None
    text: ToldText
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_p: float | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    metadata: dict[str, str] = {}


class DeletedResponse(msgspec.Struct):
    """The answer to DELETE."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class ItemList(msgspec.Struct, kw_only=True):
    """A page of the items that a response was made of."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(msgspec.Struct):
    """The number of tokens in an input, for the model."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


# --- events -----------------------------------------------------------------------------------------------------------

SequenceNumber = Annotated[int, Meta(description="counts the events of a stream from 0")]


class _Event(msgspec.Struct):
    type: str
    sequence_number: SequenceNumber


class _InItem(_Event):
    item_id: str
    output_index: int


class _InContent(_InItem):
    content_index: int


class _InSummary(_InItem):
    summary_index: int


class ResponseEvent(_Event):
    """The response has begun, or ended."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: Response


class ItemEvent(_Event):
    """An item has begun, or ended."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class PartEvent(_InContent):
    """A part of an item's content has begun, or ended."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    part: OutputText | ReasoningText


class SummaryPartEvent(_InSummary):
    """The part of a summary has begun, or ended."""

    type: Literal["response.reasoning_summary_part.added", "response.reasoning_summary_part.done"]
    part: SummaryText


class OutputTextDelta(_InContent):
    """More of a message's text."""

    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[OutputLogprob]


class OutputTextDone(_InContent):
    """The whole text of a message."""

    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[OutputLogprob]


class ReasoningDelta(_InContent):
    """More of the reasoning."""

    type: Literal["response.reasoning_text.delta"]
    delta: str


class ReasoningDone(_InContent):
    """The whole reasoning."""

    type: Literal["response.reasoning_text.done"]
    text: str


class SummaryDelta(_InSummary):
    """More of the reasoning, where it stands in the summary's place."""

    type: Literal["response.reasoning_summary_text.delta"]
    delta: str


class SummaryDone(_InSummary):
    """The whole reasoning, where it stands in the summary's place."""

    type: Literal["response.reasoning_summary_text.done"]
    text: str


class ArgumentsDelta(_InItem):
    """More of a call's arguments."""

    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDone(_InItem):
    """All arguments of a call."""

    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


class ErrorEvent(_Event):
    """The answer broke off; `response.failed` follows."""

    type: Literal["error"]
    code: str | None
    message: str
    param: str | None


EVENTS = (
    ResponseEvent,
    ItemEvent,
    PartEvent,
    SummaryPartEvent,
    OutputTextDelta,
    OutputTextDone,
    ReasoningDelta,
    ReasoningDone,
    SummaryDelta,
    SummaryDone,
    ArgumentsDelta,
    ArgumentsDone,
    ErrorEvent,
)
