"""Encodes messages, whole or as a stream. On the event loop. Source: Anthropic API reference, messages, streaming."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.errors import ServerError
from dragoman.server.api import SSE_MEDIA_TYPE, Encoder, Head, IndexedEvent, Reply, json_reply
from dragoman.server.apis.anthropic.errors import REQUEST_ID, error_body
from dragoman.server.apis.anthropic.parameters import TTLS
from dragoman.server.apis.anthropic.schema import (
    AnthropicMessage,
    AnthropicText,
    AnthropicTextDelta,
    AnthropicThinking,
    AnthropicThinkingDelta,
    AnthropicToolUse,
    BlockDelta,
    BlockStart,
    BlockStop,
    CacheCreation,
    InputJsonDelta,
    MessageDelta,
    MessagesBody,
    MessageStart,
    MessageStop,
    MessagesUsage,
    Ping,
    SignatureDelta,
    Stopped,
    StopWord,
)
from dragoman.server.apis.openai_wire.common import TextChunk
from dragoman.types import (
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    GenerationResult,
    PromptInfo,
    SequenceResult,
    ToolCallDelta,
)

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
        self._prompt: PromptInfo | None = None
        self._num_cached = self._num_output = 0
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
        self._count(result.prompt, len(sequence.tokens), 0)
        blocks = self._blocks(sequence)
        stop = self._stop(sequence.finish_reason, sequence.stop_match)
        message = self._message(blocks, stop.stop_reason, stop.stop_sequence)
        return json_reply(200, message, self._headers)

    def head(self, events: Sequence[IndexedEvent]) -> Head:
        return Head(SSE_MEDIA_TYPE, headers=self._headers)

    def event(self, request_index: int, event: GenerationEvent) -> bytes:
        self._count(event.prompt, len(event.tokens), event.num_cached_tokens)
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

    def keep_alive(self) -> bytes:
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

    def _count(self, prompt: PromptInfo | None, num_tokens: int, num_cached: int) -> None:
        self._num_output += num_tokens
        self._num_cached += num_cached
        if prompt is not None:
            self._prompt = prompt
            self._num_cached += prompt.num_cached_tokens

    def _usage(self) -> MessagesUsage:
        num_prompt = 0 if self._prompt is None else len(self._prompt.token_ids)
        num_kept = 0 if self._prompt is None else self._prompt.num_kept_tokens
        num_written = max(0, num_kept - self._num_cached)
        num_new = num_prompt - self._num_cached - num_written
        is_long = self._request.cache_keep_s == TTLS["1h"]
        written = CacheCreation(0, num_written) if is_long else CacheCreation(num_written)
        return MessagesUsage(num_new, num_written, self._num_cached, self._num_output, written)

    def _stop(self, reason: FinishReason, match: str | int | None) -> Stopped:
        if reason in _CUT_SHORT:
            has_all = reason is FinishReason.ABORT or self._num_output >= (self._request.max_tokens or 0)
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
