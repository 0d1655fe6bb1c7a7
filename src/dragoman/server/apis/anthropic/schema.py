"""The wire schema of messages. On the event loop. Source: Anthropic API reference, messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal, Self

import msgspec

# --- request ----------------------------------------------------------------------------------------------------------


class CacheControl(msgspec.Struct, kw_only=True):
    """`cache_control`: the prompt up to here is to be kept for `ttl`. `type`: ephemeral."""

    type: str | None = None
    ttl: str | None = None


class ImageSource(msgspec.Struct, kw_only=True):
    """The source of an image: `base64` with its `data` and `media_type`, or `url`."""

    type: str | None = None
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class InputBlock(msgspec.Struct, kw_only=True):
    """One block of a message: text, image, tool_use, tool_result, thinking or redacted_thinking."""

    type: str | None = None
    text: str | None = None
    source: ImageSource | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[InputBlock] | None = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    cache_control: CacheControl | None = None


class InputMessage(msgspec.Struct, kw_only=True):
    """One message: of the user, of the assistant, or a system prompt in the midst of the conversation."""

    role: str | None = None
    content: str | list[InputBlock] | None = None


class CustomTool(msgspec.Struct, kw_only=True):
    """A tool that the client runs. `input_schema`: of what it takes."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    type: str | None = None
    cache_control: CacheControl | None = None


class ToolWish(msgspec.Struct, kw_only=True):
    """`tool_choice`: auto, any, none, or tool with its `name`."""

    type: str | None = None
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(msgspec.Struct, kw_only=True):
    """`thinking`: enabled with `budget_tokens`, adaptive or disabled; whether its text is `summarized` or `omitted`."""

    type: str | None = None
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    """The form of the answer: `json_schema` and the schema."""

    type: str | None = None
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, kw_only=True):
    """`output_config`. `effort`: how much the model may think."""

    effort: str | None = None
    format: OutputFormat | None = None


class AnthropicMetadata(msgspec.Struct, kw_only=True):
    """`metadata`, which names the client's own user."""

    user_id: str | None = None


class PromptBody(msgspec.Struct, kw_only=True):
    """The body of POST /v1/messages/count_tokens: what makes a prompt."""

    messages: list[InputMessage] | None = None
    model: str | None = None
    system: str | list[InputBlock] | None = None
    tools: list[CustomTool] | None = None
    tool_choice: ToolWish | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    cache_control: CacheControl | None = None


class MessagesBody(PromptBody, kw_only=True):
    """The body of POST /v1/messages."""

    max_tokens: int | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    metadata: AnthropicMetadata | None = None
    service_tier: str | None = None


# --- answer -----------------------------------------------------------------------------------------------------------

StopWord = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class AnthropicText(msgspec.Struct, tag_field="type", tag="text"):
    """A block of text."""

    text: str


class AnthropicThinking(msgspec.Struct, tag_field="type", tag="thinking"):
    """The model's reasoning. `signature`: a fingerprint of the text."""

    thinking: str
    signature: str


class AnthropicToolUse(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A tool that is to be called. `input`: an object, its text as the model wrote it."""

    id: str
    name: str
    input: msgspec.Raw


class CacheCreation(msgspec.Struct):
    """Of the tokens that are kept since this request, for how long."""

    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class MessagesUsage(msgspec.Struct):
    """Token counts. The prompt's are the sum of the first three, of which those of the cache were not computed again."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    cache_creation: CacheCreation
    service_tier: Literal["standard"] = "standard"


class AnthropicMessage(msgspec.Struct, tag_field="type", tag="message"):
    """The answer; in a stream's first event it is still empty."""

    id: str
    role: Literal["assistant"]
    model: str
    content: list[AnthropicText | AnthropicThinking | AnthropicToolUse]
    stop_reason: StopWord | None
    stop_sequence: str | None
    usage: MessagesUsage


class TokenCount(msgspec.Struct):
    """The answer of /v1/messages/count_tokens."""

    input_tokens: int


# --- events of a stream -----------------------------------------------------------------------------------------------


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    """The first event."""

    message: AnthropicMessage


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """An event that says nothing."""


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    """A block begins, and is empty."""

    index: int
    content_block: AnthropicText | AnthropicThinking | AnthropicToolUse


class AnthropicTextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    """A piece of text."""

    text: str


class AnthropicThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    """A piece of what the model thinks."""

    thinking: str


class SignatureDelta(msgspec.Struct, tag_field="type", tag="signature_delta"):
    """The last of a thinking block."""

    signature: str


class InputJsonDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """A piece of a tool's input, as JSON text."""

    partial_json: str


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    """An addition to the block."""

    index: int
    delta: AnthropicTextDelta | AnthropicThinkingDelta | SignatureDelta | InputJsonDelta


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    """The block is complete."""

    index: int


class Stopped(msgspec.Struct):
    """Why the answer ended."""

    stop_reason: StopWord
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    """The answer is complete; all tokens are counted."""

    delta: Stopped
    usage: MessagesUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    """The last event."""


EVENTS = (MessageStart, Ping, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop)

# --- lists ------------------------------------------------------------------------------------------------------------


class Page(msgspec.Struct):
    """One page of a list, whose entries have ids."""

    data: list[Any]
    has_more: bool
    first_id: str | None
    last_id: str | None

    @classmethod
    def of(cls, data: list[Any], has_more: bool) -> Self:
        return cls(data, has_more, *((data[0].id, data[-1].id) if data else (None, None)))


def rfc3339(seconds: float) -> str:
    """A time since the epoch, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
