"""Messages: answers and events, their encoder, and the dialect of one served model. On the event loop.

Source: Anthropic API reference, messages, streaming.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from dragoman.errors import ServerError
from dragoman.server.api import (
    SSE_MEDIA_TYPE,
    Call,
    Encoder,
    Head,
    HttpCall,
    IndexedEvent,
    ModelProfile,
    PureDialect,
    Reply,
    json_reply,
)
from dragoman.server.apis.anthropic.conversation import (
    conversation,
    has_parallel_calls,
    refuse_built_in,
    refuse_unoffered_blocks,
    tool_use,
)
from dragoman.server.apis.anthropic.request import (
    ANTHROPIC,
    ERRORS,
    REQUEST_ID,
    TTLS,
    MessagesBody,
    PromptBody,
    budget_of,
    cache_ttl,
    check_words,
    error_body,
    named_without_effect,
    output_grammar,
    refuse_unoffered,
    thinking_kwargs,
)
from dragoman.server.apis.openai_wire.common import Reading, TextChunk, UsageCounter, name_in_answer
from dragoman.server.apis.openai_wire.conversation import ToolUse
from dragoman.server.apis.openai_wire.fields import check_bounds, decode_object, read_struct
from dragoman.server.apis.openai_wire.sampling import shared_body, shared_request
from dragoman.types import (
    ChatPrompt,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    Limits,
    SequenceResult,
    ToolCallDelta,
)

# --- answers and events -----------------------------------------------------------------------------------------------

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

# --- encoder ----------------------------------------------------------------------------------------------------------

_ENCODER = msgspec.json.Encoder()
_EMPTY = msgspec.Raw(b"{}")
_CUT_SHORT = (FinishReason.LENGTH, FinishReason.ABORT)


class MessagesEncoder(Encoder):
    """Writes one message; a call has one request with one sequence. `model`: its name in the answer."""

    def __init__(self, request: GenerationRequest, model: str, body: MessagesBody) -> None:
        self._request = request
        self._model = model
        self._headers = {REQUEST_ID: request.request_id}
        # Without, thinking blocks come without their text.
        self._shows_thinking = body.thinking is None or body.thinking.display != "omitted"
        self._counter = UsageCounter(has_details=True)
        self._is_begun = self._is_calling = False
        self._block = ""  # the kind of the block that is open, "" = none is
        self._index = -1  # of the last block that was begun
        self._held = ""  # white space that may come to stand before text
        self._call_index = -1
        self._thought = hashlib.sha256()
        self._text_chunk: TextChunk | None = None

    def full(self, results: Sequence[GenerationResult]) -> Reply:
        [result] = results
        [sequence] = result.sequences
        self._counter.of(results)
        blocks = self._blocks(sequence)
        stop = self._stop(sequence.finish_reason, sequence.stop_match)
        message = self._message(blocks, stop.stop_reason, stop.stop_sequence)
        return json_reply(200, message, self._headers)

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        return Head(SSE_MEDIA_TYPE, headers=self._headers)

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        self._counter.add(event)
        plain = event.content and not (event.reasoning or event.tool_calls or event.finish_reason)
        if plain and self._block == "text" and self._text_chunk is not None:  # as nearly always
            return self._text_chunk.frame(event.content)
        pieces: list[bytes] = []
        if not self._is_begun:
            self._is_begun = True
            pieces += [_framed(MessageStart(self._message([], None, None))), _framed(Ping())]
        if event.reasoning:
            pieces.append(self._thinking(event.reasoning))
        if event.content:
            pieces.append(self._text(event.content))
        pieces += [self._call_piece(delta) for delta in event.tool_calls if self._is_kept(delta.index)]
        if event.finish_reason is not None:
            pieces.append(self._end_of_blocks())
            stop = self._stop(event.finish_reason, event.stop_match)
            pieces.append(_framed(MessageDelta(stop, self._usage())))
        return b"".join(pieces)

    def end(self) -> bytes:
        return _framed(MessageStop())

    def stream_error(self, error: ServerError) -> bytes:
        return _framed(error_body(error, self._request.request_id))

    def keep_alive(self, head: Head) -> bytes:
        return _framed(Ping())

    # --- whole ------------------------------------------------------------------------------------------------------

    def _blocks(self, sequence: SequenceResult) -> list[AnthropicText | AnthropicThinking | AnthropicToolUse]:
        calls = [call for i, call in enumerate(sequence.tool_calls) if self._is_kept(i)]
        blocks: list[AnthropicText | AnthropicThinking | AnthropicToolUse] = []
        self._is_calling = bool(calls)
        if sequence.reasoning:
            self._thought.update(sequence.reasoning.encode())
            shown = sequence.reasoning if self._shows_thinking else ""
            blocks.append(AnthropicThinking(shown, self._signature()))
        if sequence.content.strip() or (sequence.content and not calls):  # white space around calls is not text
            blocks.append(AnthropicText(sequence.content))
        return blocks + [AnthropicToolUse(call.id, call.name, tool_input(call.arguments)) for call in calls]

    def _message(self, blocks: list[Any], stop: StopWord | None, stop_sequence: str | None) -> AnthropicMessage:
        name = f"msg_{self._request.request_id}"
        return AnthropicMessage(name, "assistant", self._model, blocks, stop, stop_sequence, self._usage())

    def _usage(self) -> MessagesUsage:
        counter = self._counter
        num_cached, num_written = counter.num_cached_tokens, counter.num_written_tokens
        num_new = counter.num_prompt_tokens - num_cached - num_written
        is_long = self._request.cache_keep_s == TTLS["1h"]
        written = CacheCreation(0, num_written) if is_long else CacheCreation(num_written)
        return MessagesUsage(num_new, num_written, num_cached, counter.num_completion_tokens, written)

    def _stop(self, reason: FinishReason, match: str | int | None) -> Stopped:
        if reason in _CUT_SHORT:
            has_all = reason is FinishReason.ABORT or self._counter.num_completion_tokens >= (
                self._request.max_tokens or 0
            )
            return Stopped("max_tokens" if has_all else "model_context_window_exceeded", None)
        if self._is_calling:
            return Stopped("tool_use", None)
        if reason is FinishReason.STOP_STRING and isinstance(match, str):
            return Stopped("stop_sequence", match)
        return Stopped("end_turn", None)

    def _is_kept(self, call_index: int) -> bool:
        return self._request.parallel_tool_calls or call_index == 0

    def _signature(self) -> str:
        """A fingerprint of the reasoning: clients send a block back only if it has one."""
        return base64.b64encode(self._thought.digest()).decode()

    # --- streamed ---------------------------------------------------------------------------------------------------

    def _thinking(self, text: str) -> bytes:
        opened = self._open("thinking", AnthropicThinking("", ""))
        self._thought.update(text.encode())
        return opened + self._delta(AnthropicThinkingDelta(text)) if self._shows_thinking else opened

    def _text(self, text: str) -> bytes:
        """Text; white space alone waits for more, as it is dropped before a call."""
        if self._block != "text":
            self._held += text
            if not self._held.strip():
                return b""
            text, self._held = self._held, ""
        opened = self._open("text", AnthropicText(""))
        if opened:
            self._text_chunk = TextChunk(lambda piece: self._delta(AnthropicTextDelta(piece)))
        return opened + self._delta(AnthropicTextDelta(text))

    def _call_piece(self, delta: ToolCallDelta) -> bytes:
        opened = b""
        if delta.index != self._call_index:
            self._call_index, self._is_calling, self._held = delta.index, True, ""
            block = AnthropicToolUse(delta.id or "", delta.name or "", _EMPTY)
            opened = self._close() + self._open("tool_use", block)
        return opened + (self._delta(InputJsonDelta(delta.arguments)) if delta.arguments else b"")

    def _end_of_blocks(self) -> bytes:
        left = self._held if not self._is_calling else ""
        self._held = ""
        opened = self._open("text", AnthropicText("")) + self._delta(AnthropicTextDelta(left)) if left else b""
        return opened + self._close()

    def _open(self, kind: str, block: AnthropicText | AnthropicThinking | AnthropicToolUse) -> bytes:
        if self._block == kind:
            return b""
        closed = self._close()
        self._block, self._index = kind, self._index + 1
        return closed + _framed(BlockStart(self._index, block))

    def _close(self) -> bytes:
        if not self._block:
            return b""
        signed = b""
        if self._block == "thinking":
            signed = self._delta(SignatureDelta(self._signature()))
            self._thought = hashlib.sha256()
        self._block = ""
        return signed + _framed(BlockStop(self._index))

    def _delta(self, delta: AnthropicTextDelta | AnthropicThinkingDelta | SignatureDelta | InputJsonDelta) -> bytes:
        return _framed(BlockDelta(self._index, delta))


def tool_input(arguments: str) -> msgspec.Raw:
    """A call's arguments as an object; text that was cut stands under the name that Anthropic's guide gives it."""
    if not arguments.strip():
        return _EMPTY
    try:
        is_object = isinstance(msgspec.json.decode(arguments), dict)
    except (msgspec.DecodeError, RecursionError):
        is_object = False
    return msgspec.Raw(arguments.encode() if is_object else _ENCODER.encode({"INVALID_JSON": arguments}))


def _framed(value: msgspec.Struct) -> bytes:
    name = value.__struct_config__.tag
    return f"event: {name}\ndata: ".encode() + _ENCODER.encode(value) + b"\n\n"


# --- dialect ----------------------------------------------------------------------------------------------------------

BodyT = TypeVar("BodyT", bound=PromptBody)


class PromptOfBody(NamedTuple):
    """The prompt and tools for the model. `ignored`: names of parts that it does not get."""

    prompt: ChatPrompt
    tools: ToolUse
    ignored: tuple[str, ...]


def read_body(http: HttpCall, kind: type[BodyT]) -> tuple[dict[str, Any], BodyT]:
    """The body as sent, and typed. Raises: InvalidRequest, UnsupportedFeature."""
    raw = decode_object(http, ANTHROPIC)
    refuse_unoffered(raw)
    refuse_built_in(raw)
    refuse_unoffered_blocks(raw)
    body = read_struct(raw, kind, ANTHROPIC)
    check_bounds(raw, body, ANTHROPIC)
    return raw, body


def prompt_of(
    raw: Mapping[str, Any], body: PromptBody, limits: Limits, max_tokens: int | None = None, betas: str = ""
) -> PromptOfBody:
    """Raises: InvalidRequest."""
    kwargs = thinking_kwargs(body, max_tokens, betas)
    messages, ignored = conversation(body, limits)
    tools, continues = tool_use(body, raw), messages[-1]["role"] == "assistant"
    return PromptOfBody(ChatPrompt(messages, tools.tools, continues, kwargs), tools, ignored)


class MessagesDialect(PureDialect):
    errors = ERRORS

    def __init__(self, model: ModelProfile) -> None:
        self._reading = Reading(ANTHROPIC, model)

    def parse(self, http: HttpCall) -> Call:
        model = self._reading.model
        raw, body = read_body(http, MessagesBody)
        check_words(body, model.limits)
        shown = prompt_of(raw, body, model.limits, body.max_tokens, http.headers.get("anthropic-beta", ""))
        ttl = cache_ttl(body)
        keep_s = TTLS[ttl] if ttl is not None and model.keeps_prompts else None
        request = self._request(http, body, shown, keep_s)
        is_greedy = request.sampling.is_greedy
        idle = named_without_effect(
            raw, body, is_greedy=is_greedy, keeps_prompts=model.keeps_prompts, thinks=model.thinks
        )
        return Call(
            (request,),
            MessagesEncoder(request, name_in_answer(self._reading, body.model), body),
            stream=bool(body.stream),
            idle={**idle, **dict.fromkeys(shown.ignored, "")},
        )

    def _request(
        self, http: HttpCall, body: MessagesBody, shown: PromptOfBody, keep_s: float | None
    ) -> GenerationRequest:
        request = shared_request(
            shared_body(body, stop=body.stop_sequences, thinking_token_budget=budget_of(body)),
            self._reading,
            request_id=http.request_id,
            prompt=shown.prompt,
            logprobs=None,
            grammar=output_grammar(body),
            parse_reasoning=True,
            parallel_tool_calls=has_parallel_calls(body),
            **shown.tools.request_fields(),
        )
        return msgspec.structs.replace(request, cache_keep_s=keep_s)
